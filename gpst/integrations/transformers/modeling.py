"""GPST as transformers models: for text with trees, and for classifying texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightRenaming
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import ModelOutput

from gpst.batch import ContextBatch
from gpst.chart.decode import decode, trees_of
from gpst.export.former import NAMES_NOW
from gpst.export.huggingface import PREFIX
from gpst.integrations.transformers.configuration import GPSTConfig
from gpst.layers.transformer import init_std
from gpst.model.generator import GeneratorPadding
from gpst.model.gpst import GPSTModel
from gpst.model.losses import total_loss
from gpst.search.generate import generate
from gpst.search.sampling import Sampling
from gpst.tree import Tree

__all__ = ["GPSTConfig", "GPSTForCausalLM", "GPSTForSequenceClassification", "register"]


@dataclass
class GPSTOutput(ModelOutput):
    """Output of GPSTForCausalLM."""

    loss: Tensor | None = None
    """The training loss (all five terms), when labels were given."""
    logits: Tensor | None = None
    """(B, T, V): at t, of token t + 1, given the tokens and the trees' nodes up to token t."""
    trees: list[list[Tree]] | None = None
    """The induced trees of each row's sentences."""


class GPSTPreTrainedModel(PreTrainedModel):
    """What both models share: the core model, whose parameters are named `gpst.*`."""

    config_class = GPSTConfig
    config: GPSTConfig
    base_model_prefix = "gpst"

    def __init__(self, config: GPSTConfig):
        super().__init__(config)
        self.gpst = GPSTModel(config.core())

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The core model initialises itself; this is for heads that a checkpoint lacks."""
        if module is getattr(self, "classifier", None):
            nn.init.normal_(module.weight, std=init_std(self.config.hidden_dim))  # type: ignore[arg-type]
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As transformers'; always under the names of now, whichever it was loaded from."""
        super().save_pretrained(*args, **{**kwargs, "save_original_format": False})

    def get_input_embeddings(self) -> nn.Module:
        return self.gpst.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.gpst.embedding = value

    def get_output_embeddings(self) -> None:
        """None: the head is the input embedding itself."""

    def _rows(
        self,
        input_ids: Int64[Tensor, "B T"],
        attention_mask: Tensor | None,
        sentence_ends: Bool[Tensor, "B T"] | None,
    ) -> list[list[list[int]]]:
        """The sentences of each row.

        Args:
            attention_mask: (B, T), 0 for padding, which may only come after the tokens.
            sentence_ends: true at the last token of a sentence; by default at every token that may
                end one (`sentence_final_token_ids`).
        """
        if sentence_ends is None:
            final = torch.tensor(
                self.config.sentence_final_token_ids or [], device=input_ids.device
            )
            sentence_ends = torch.isin(input_ids, final)
        lengths = (
            [input_ids.shape[1]] * len(input_ids)
            if attention_mask is None
            else attention_mask.sum(1).tolist()
        )
        if attention_mask is not None:
            place = torch.arange(input_ids.shape[1], device=input_ids.device)
            if bool((attention_mask.bool() != (place < attention_mask.sum(1, True))).any()):
                raise ValueError("attention_mask: padding must come after the tokens (right side)")
        rows = []
        for ids, ends, length in zip(
            input_ids.tolist(), sentence_ends.tolist(), lengths, strict=True
        ):
            cuts = [k + 1 for k in range(length - 1) if ends[k]]
            parts = zip([0, *cuts], [*cuts, length], strict=True)
            rows.append([ids[a:b] for a, b in parts])
        return rows


class GPSTForCausalLM(GPSTPreTrainedModel):
    """GPST for text with trees.

    The logits are those of training: given the trees that the composition model induces on whole
    sentences. They are no left-to-right probabilities, because those trees have seen what follows;
    for those use `gpst.search.parse.search_text` (prefix probabilities) or `generate` here.
    """

    def __init__(self, config: GPSTConfig):
        super().__init__(config)
        self.post_init()

    def forward(
        self,
        input_ids: Int64[Tensor, "B T"],
        attention_mask: Tensor | None = None,
        sentence_ends: Bool[Tensor, "B T"] | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> GPSTOutput:
        """
        Args:
            input_ids: tokens without <bos>, which the model puts before them itself.
            attention_mask, sentence_ends: see `_rows`.
            labels: anything but None: the training loss of the tokens is wanted.
        """
        rows = self._rows(input_ids, attention_mask, sentence_ends)
        device = input_ids.device
        batch = ContextBatch.from_sentences(rows).to(device)
        loss = None
        if labels is not None:
            loss = total_loss(self.gpst(batch).losses, batch.counts)
        features, trees = features_after_tokens(self.gpst, rows, device)
        logits = features.new_zeros(*input_ids.shape, self.config.vocab_size)
        lengths = torch.from_numpy(batch.context_lengths).to(device)
        inside = torch.arange(input_ids.shape[1], device=device) < lengths[:, None]
        logits[inside] = features @ self.gpst.embedding.weight.T
        return GPSTOutput(loss=loss, logits=logits, trees=trees)  # type: ignore[arg-type]

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        input_ids: Int64[Tensor, "B T"],
        max_new_tokens: int = 50,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        num_beams: int = 20,
        seed: int = 0,
    ) -> Int64[Tensor, "B longest"]:
        """Rows continued by word-level search or ancestral sampling, padded with the end token."""
        end = self.config.eos_token_id
        end = end[0] if isinstance(end, list) else end
        sampling = Sampling(temperature, top_k, top_p, seed) if do_sample else None
        continuations = []
        for row in self._rows(input_ids, None, None):
            [one] = generate(
                self.gpst,
                row,
                max_new_tokens=max_new_tokens,
                final_tokens=self.config.sentence_final_token_ids or [],
                end_token=end,
                sampling=sampling,
                beam=num_beams,
            )
            continuations.append([token for sentence in one.sentences for token in sentence])
        longest = max(len(tokens) for tokens in continuations)
        padded = [tokens + [end or 0] * (longest - len(tokens)) for tokens in continuations]
        return torch.tensor(padded, device=input_ids.device)


def features_after_tokens(
    model: GPSTModel, rows: Sequence[Sequence[Sequence[int]]], device: torch.device
) -> tuple[Float[Tensor, "N H"], list[list[Tree]]]:
    """What predicts the token after each token, given the induced trees; and those trees.

    A one-token sentence is put behind each row, so that its last token predicts something as well.
    """
    bos = model.config.bos_token_id
    batch = ContextBatch.from_sentences([[*map(list, row), [bos]] for row in rows]).to(device)
    layout = model.layout(batch, model.parser(batch).detach())
    embedded = model.embedding(batch.tokens)
    chart = model._inside(layout, embedded, 1.0, False)
    induced = decode(layout, chart.scores)
    _, features, _ = model.generator(
        model._nodes(layout, induced, chart, embedded),
        model.embedding.weight[bos],
        GeneratorPadding.of(batch),
        layout,
        induced,
    )
    firsts = np.concatenate(([0], batch.context_token_ends[:-1]))
    not_first = np.delete(np.arange(batch.num_tokens), firsts)
    trees = iter(trees_of(layout, induced))
    of_rows = [[next(trees) for _ in range(len(row) + 1)][:-1] for row in rows]
    return features[torch.from_numpy(not_first).to(device)], of_rows


class GPSTForSequenceClassification(GPSTPreTrainedModel):
    """The state after the whole text and CLS -> classes (paper 4.1; gpst/model/classifier.py)."""

    def __init__(self, config: GPSTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels or 2
        self.classifier = nn.Linear(config.hidden_dim, self.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Int64[Tensor, "B T"],
        attention_mask: Tensor | None = None,
        sentence_ends: Bool[Tensor, "B T"] | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """
        Args:
            input_ids: tokens without <bos> and CLS, which the model adds itself.
            labels: (B,) class numbers, or values when there is one label.
        """
        cls = self.config.bos_token_id
        assert cls is not None
        rows = [[*row, [cls]] for row in self._rows(input_ids, attention_mask, sentence_ends)]
        features, _trees = features_after_tokens(self.gpst, rows, input_ids.device)
        lengths = torch.tensor([sum(map(len, row)) for row in rows], device=input_ids.device)
        logits = self.classifier(features[lengths.cumsum(0) - 1])
        loss = None
        if labels is not None and self.num_labels == 1:
            loss = F.mse_loss(logits.squeeze(1), labels.to(logits.dtype))
        elif labels is not None:
            loss = F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


class _Copy(ConversionOps):
    """One tensor of the file as each of several parameters."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: Any, target_patterns: Any, **_: Any
    ) -> dict[str, Any]:
        [tensor] = input_dict.values()
        tensor = tensor[0] if isinstance(tensor, list) else tensor
        return {name: tensor.clone() for name in target_patterns}


def _conversions() -> list[WeightConverter | WeightRenaming]:
    """Of exports from before (gpst/export/former.py)."""
    return [
        WeightConverter(f"{PREFIX}{then}", [f"{PREFIX}{name}" for name in now], [_Copy()])
        for then, now in NAMES_NOW.items()
    ]


def register() -> None:
    """Makes the Auto classes know GPST; done when a name of this package is first asked for."""
    AutoConfig.register("gpst", GPSTConfig, exist_ok=True)
    register_checkpoint_conversion_mapping("gpst", _conversions(), overwrite=True)
    # There is no model without the head, which is the embedding.
    AutoModel.register(GPSTConfig, GPSTForCausalLM, exist_ok=True)
    AutoModelForCausalLM.register(GPSTConfig, GPSTForCausalLM, exist_ok=True)
    AutoModelForSequenceClassification.register(
        GPSTConfig, GPSTForSequenceClassification, exist_ok=True
    )
