"""GPST.forward: parse -> layout -> inside -> decode -> outside -> generate (paper figure 2)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gpst.batch import ContextBatch, on_device
from gpst.chart.decode import InducedTrees, decode, trees_of
from gpst.chart.inside import InsideOutput, inside
from gpst.chart.layout import ChartLayout, build_layout
from gpst.chart.outside import outside
from gpst.config import GPSTConfig
from gpst.layers.composition import Composition, Decomposition, Scaling
from gpst.layers.transformer import HeadMLP, init_std
from gpst.model.generator import Generator, GeneratorPadding
from gpst.model.initialisation import start_as_in_paper
from gpst.model.labelled import LabelledPart
from gpst.model.losses import LossTerm, height_loss, type_loss, vocabulary_loss
from gpst.model.modes import evaluating
from gpst.model.output import ModelOutput, check_context_length
from gpst.model.parameters import decay_groups
from gpst.model.parser import BoundaryParser, add_noise, split_loss
from gpst.model.statistics import STATISTICS, layout_sizes, structure_statistics
from gpst.tree import Tree


class GPSTModel(nn.Module):
    """A Generative Pretrained Structured Transformer (ACL 2024, arXiv 2403.08293)."""

    LOSSES: ClassVar = ("autoencoding", "token", "type", "parser", "height")
    STATISTICS: ClassVar = STATISTICS

    def __init__(self, config: GPSTConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_dim)
        nn.init.normal_(self.embedding.weight, std=init_std(config.hidden_dim))
        dim = config.composition.dim
        self.parser = BoundaryParser(config.vocab_size, config.parser)
        self.scaling = Scaling(config.hidden_dim, dim)
        self.composition = Composition(config.composition)
        self.decomposition = Decomposition(config.composition)
        self.autoencoding_head = HeadMLP(dim, 4 * dim, config.hidden_dim, config.head_dropout)
        self.autoencoding_head.start_as(self.scaling.down.weight.T)
        self.generator = Generator(config)
        if config.init == "paper":
            start_as_in_paper(self)
        self.activation_checkpointing: set[str] = set()
        """Parts whose activations are recomputed in the backward pass: composition, generator."""

    def forward(
        self,
        batch: ContextBatch,
        noise: float = 0.0,
        temperature: float = 1.0,
        layout: ChartLayout | None = None,
    ) -> ModelOutput:
        """All losses of a batch in one pass.

        Args:
            noise: coefficient of the Gumbel noise on the parser's scores before ordering; the
                batch's own boundary_scores get none.
            temperature: T of the softmax over the splits of a cell.
            layout: the batch's chart, for example of known trees; by default the batch's
                boundary_scores order it, or else the parser's, for which a GPU's host waits.
        Raises:
            ValueError: a context longer than config.max_context_tokens; a layout of another batch.
        """
        check_context_length(batch, self.config.max_context_tokens)
        return self.losses_of(batch, noise, temperature, layout)

    def losses_of(
        self,
        batch: ContextBatch,
        noise: float = 0.0,
        temperature: float = 1.0,
        layout: ChartLayout | None = None,
    ) -> ModelOutput:
        """See `forward`; a one-token sentence may stand behind a context of full length."""
        if layout is not None:
            layout.check_is_of(batch.sentence_ends)
        scores = self.parser(batch)
        if layout is None:
            layout = self.layout(batch, _chart_order(batch, scores.detach(), noise))
        layout = layout.to(batch.tokens.device, non_blocking=True)
        # One look-up for both: each has a V x H table of its own as its gradient.
        looked_up = self.embedding(F.pad(batch.tokens, (0, 1), value=self.config.bos_token_id))
        embedded, bos = looked_up[:-1], looked_up[-1]
        recompute = "composition" in self.activation_checkpointing
        chart = self._inside(layout, embedded, temperature, recompute)
        induced = decode(layout, chart.scores)
        outside_vectors = outside(layout, self.decomposition, chart.inside_ae, recompute)
        type_logits, features, types = self.generator(
            self._nodes(layout, induced, chart, embedded),
            bos,
            GeneratorPadding.of(batch),
            layout,
            induced,
            "generator" in self.activation_checkpointing,
        )
        part = LabelledPart.of(batch, layout, induced)
        lengths = on_device(batch.sentence_lengths, batch.tokens.device)
        weight, tokens = self.embedding.weight, part.tokens(batch.tokens)
        rebuilt = self.autoencoding_head(part.tokens(outside_vectors))
        heights = part.sentences(chart.heights[layout.roots])
        max_height = self.config.composition.max_height
        losses = {
            "autoencoding": LossTerm(vocabulary_loss(rebuilt, weight, tokens), "tokens"),
            "token": LossTerm(vocabulary_loss(part.tokens(features), weight, tokens), "actions"),
            "type": LossTerm(type_loss(part.actions(type_logits), part.actions(types)), "actions"),
            "parser": LossTerm(split_loss(scores, layout, part.trees), "splits"),
            "height": LossTerm(
                height_loss(heights, part.sentences(lengths), max_height), "sentences"
            ),
        }
        statistics = structure_statistics(scores, layout, induced, chart)
        return ModelOutput(losses, statistics, features, layout_sizes(layout))

    def layout(self, batch: ContextBatch, scores: Float[Tensor, "N"]) -> ChartLayout:
        """The chart that the scores order, on the batch's device (the one copy to the host)."""
        composition, on_gpu = self.config.composition, batch.tokens.is_cuda
        on_host = build_layout(
            scores.cpu().numpy(),
            batch.sentence_ends,
            composition.window,
            composition.schedule,
            batch.inside_word,
            batch.atoms,
            torch.get_num_threads(),
            pin=on_gpu,
        )
        return on_host.to(batch.tokens.device, non_blocking=True)

    def _inside(
        self, layout: ChartLayout, embedded: Tensor, temperature: float, recompute: bool
    ) -> InsideOutput:
        leaves = self.scaling.down(embedded)
        stop = self.config.gradient_stop
        return inside(layout, self.composition, leaves, temperature, stop, recompute)

    def _nodes(
        self, layout: ChartLayout, induced: InducedTrees, chart: InsideOutput, embedded: Tensor
    ) -> Float[Tensor, "M H"]:
        """Inputs of the generative model: token embeddings and surrogates of constituents."""
        nodes = induced.nodes
        is_token = (nodes < layout.num_tokens)[:, None]
        tokens = embedded.index_select(0, torch.where(is_token[:, 0], nodes, 0))
        last = self._last_words(is_token[:, 0], embedded)
        if self.generator.comp_embedding is not None:
            # The two models are disconnected; the maps between them still take part in the step.
            silent = 0.0 * (self.scaling.up.weight.sum() + self.scaling.up.bias.sum())
            return torch.where(is_token, tokens, self.generator.comp_embedding + silent + last)
        surrogate = self.scaling.up(chart.inside_ar.index_select(0, nodes))
        return torch.where(is_token, tokens, surrogate + last)

    def _last_words(self, is_token: Bool[Tensor, "M"], embedded: Tensor) -> Tensor | float:
        """(M, H) embedding of the last token of each node (`config.last_word`), or 0."""
        if not self.config.last_word:
            return 0.0
        return embedded.index_select(0, torch.cumsum(is_token, 0) - 1)

    @torch.no_grad()
    def induced_trees(self, batch: ContextBatch) -> list[Tree]:
        """The composition model's tree of each sentence (`inside` parsing), no noise, no dropout.

        The batch's atoms are constituents.
        """
        with evaluating(self):
            layout = self.layout(batch, self.parser(batch))
            chart = self._inside(layout, self.embedding(batch.tokens), 1.0, False)
            return trees_of(layout, decode(layout, chart.scores))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by how they are optimised (gpst/model/parameters.py)."""
        return decay_groups(self, self.parser)


def _chart_order(
    batch: ContextBatch, parser_scores: Float[Tensor, "N"], noise: float
) -> Float[Tensor, "N"]:
    """The scores that order the chart in training."""
    if batch.boundary_scores is None:
        return add_noise(parser_scores, noise)
    return torch.from_numpy(batch.boundary_scores)
