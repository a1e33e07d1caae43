"""The top-down parser: a score for every boundary of a sentence (paper 3.1), and its likelihood.

Only the order of the scores reaches the chart, so that no gradient comes back from there; the
parser learns from the likelihood of the induced trees.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gpst.batch import ContextBatch, on_device
from gpst.chart.decode import InducedTrees
from gpst.chart.layout import ChartLayout
from gpst.config import ParserConfig
from gpst.kernels.choice import use_triton
from gpst.kernels.gelu import gelu
from gpst.kernels.product import Linear
from gpst.layers.transformer import at_least_fp32, compute_dtype, init_linear, init_std


class _Rows(NamedTuple):
    """The N tokens of a batch as they are, for attention of unequal lengths: flash on a GPU."""

    position: Tensor
    """(N,) of each token in its sentence."""
    ends: Tensor
    """(S + 1,) int32: tokens up to the end of each sentence, from 0."""
    longest: int

    @classmethod
    def of(cls, batch: ContextBatch) -> _Rows:
        lengths, device = batch.sentence_lengths, batch.tokens.device
        starts = np.repeat(batch.sentence_ends - lengths, lengths)
        ends = np.append(0, batch.sentence_ends).astype(np.int32)
        position = on_device(np.arange(batch.num_tokens) - starts, device)
        return cls(position, on_device(ends, device), int(lengths.max()))

    def of_tokens(self, values: Tensor) -> Tensor:
        """(N, ...) values of tokens -> of rows."""
        return values

    def to_tokens(self, values: Tensor) -> Tensor:
        """And back."""
        return values

    def attend(self, packed: Float[Tensor, "N 3 h d"]) -> Float[Tensor, "N h d"]:
        """Each token to all of its sentence."""
        from torch.nn.attention.varlen import varlen_attn

        lengths = self.ends, self.ends, self.longest, self.longest
        return varlen_attn(*packed.unbind(1), *lengths)  # type: ignore[return-value]


class _Padding(NamedTuple):
    """Where the tokens of a batch lie in P rows: groups of sentences, padded to the longest."""

    token: Tensor
    """(P,) the token of each row; token 0 on padding."""
    position: Tensor
    """(P,) of each row in its sentence."""
    row: Tensor
    """(N,) the row of each token."""
    sizes: list[int]
    """Rows of each group."""
    masks: list[Tensor]
    """(sentences, 1, 1, longest) of each group: true for tokens, false for padding."""

    def of_tokens(self, values: Tensor) -> Tensor:
        """(N, ...) values of tokens -> of rows."""
        return values.index_select(0, self.token)

    def to_tokens(self, values: Tensor) -> Tensor:
        """And back."""
        return values.index_select(0, self.row)

    def attend(self, packed: Float[Tensor, "P 3 h d"]) -> Float[Tensor, "P h d"]:
        """Each token to all of its sentence."""
        outputs: list[Tensor] = []
        for group, mask in zip(packed.split(self.sizes), self.masks, strict=True):
            rows = group.unflatten(0, (len(mask), -1))
            query, key, value = rows.permute(2, 0, 3, 1, 4).unbind(0)
            attended = F.scaled_dot_product_attention(query, key, value, mask)
            outputs.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs)

    @classmethod
    def of(cls, batch: ContextBatch) -> _Padding:
        lengths, device = batch.sentence_lengths, batch.tokens.device
        starts = batch.sentence_ends - lengths
        tokens, positions, masks = [], [], []
        for group in length_groups(lengths):
            position = np.arange(int(lengths[group].max()))
            mask = position < lengths[group][:, None]
            tokens.append(np.where(mask, starts[group][:, None] + position, 0).ravel())
            positions.append(np.tile(position, len(group)))
            masks.append(mask)
        token = np.concatenate(tokens)
        real = np.flatnonzero(np.concatenate([mask.ravel() for mask in masks]))
        row = np.empty(batch.num_tokens, np.int64)
        row[token[real]] = real
        return cls(
            on_device(token, device),
            on_device(np.concatenate(positions), device),
            on_device(row, device),
            [mask.size for mask in masks],
            [on_device(mask, device)[:, None, None] for mask in masks],
        )


def _turns(position: Int64[Tensor, "P"], dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(P, 1, 1, dim / 2) cosines and sines of position / 10000^(2i/dim)."""
    rate = 10000.0 ** (-torch.arange(0, dim, 2, device=position.device, dtype=torch.float32) / dim)
    angle = position.to(torch.float32).view(-1, 1, 1, 1) * rate
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotate(x: Float[Tensor, "P 2 h d"], turns: tuple[Tensor, Tensor]) -> Float[Tensor, "P 2 h d"]:
    """Rotary positions: features 2i and 2i+1 turned."""
    cos, sin = turns
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class _ParserLayer(nn.Module):
    """Pre-norm layer: RMSNorm, rotary attention over the whole sentence, SwiGLU."""

    def __init__(self, config: ParserConfig):
        super().__init__()
        dim = config.dim
        self.num_heads = config.num_heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.query_key_value = Linear(dim, 3 * dim, bias=False)
        self.attention_out = Linear(dim, dim, bias=False)
        self.gate_and_value = Linear(dim, 2 * config.ffn_dim, bias=False)
        self.ffn_out = Linear(config.ffn_dim, dim, bias=False)
        for layer in (self.query_key_value, self.attention_out, self.gate_and_value, self.ffn_out):
            nn.init.xavier_uniform_(layer.weight)

    def _attend(
        self, x: Float[Tensor, "P D"], rows: _Rows | _Padding, turns: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "P D"]:
        packed = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1))
        packed = torch.cat((_rotate(packed[:, :2], turns), packed[:, 2:]), 1)
        return rows.attend(packed).flatten(1)

    def forward(
        self, x: Float[Tensor, "P D"], rows: _Rows | _Padding, turns: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "P D"]:
        x = x + self.attention_out(self._attend(self.attention_norm(x), rows, turns))
        gate, up = self.gate_and_value(self.ffn_norm(x)).chunk(2, -1)
        return x + self.ffn_out(F.silu(gate) * up)


def length_groups(lengths: np.ndarray) -> list[np.ndarray]:
    """Sentences in groups of lengths that differ by at most 7: little padding, and few groups."""
    eighths = (lengths + 7) // 8
    return [np.flatnonzero(eighths == number) for number in np.unique(eighths)]


class BoundaryParser(nn.Module):
    """v_k = MLP([h_k ; h_k+1]) for the boundary after each token; h from a small Transformer.

    Dropout is inside the MLP alone.
    """

    def __init__(self, vocab_size: int, config: ParserConfig):
        super().__init__()
        self.dropout = config.dropout
        self.head_width = config.dim // config.num_heads
        self.embedding = nn.Embedding(vocab_size, config.dim)
        nn.init.normal_(self.embedding.weight, std=init_std(config.dim))
        self.layers = nn.ModuleList(_ParserLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim)
        self.dense = Linear(2 * config.dim, config.score_width)
        self.score = nn.Linear(config.score_width, 1, bias=False)  # a softmax would not see a bias
        init_linear(self.dense)
        init_linear(self.score)

    def forward(self, batch: ContextBatch) -> Float[Tensor, "N"]:
        """Scores in fp32; the entry of a sentence's last token stands for nothing."""
        dtype, width = compute_dtype(self.embedding.weight), self.head_width
        unequal = batch.tokens.is_cuda and dtype.itemsize == 2 and width % 8 == 0
        rows = _Rows.of(batch) if unequal else _Padding.of(batch)
        x = self.embedding(rows.of_tokens(batch.tokens))
        turns = _turns(rows.position, width, dtype)
        for layer in self.layers:
            x = layer(x, rows, turns)
        x = self.norm(rows.to_tokens(x))
        pairs = torch.cat((x, x.roll(-1, 0)), -1)
        inner = F.dropout(gelu(self.dense(pairs)), self.dropout, self.training)
        return at_least_fp32(self.score(inner).squeeze(-1))


def add_noise(scores: Float[Tensor, "N"], coefficient: float) -> Float[Tensor, "N"]:
    """Scores plus Gumbel(0, 1) noise times a coefficient."""
    if coefficient == 0.0:
        return scores
    exponential = torch.empty_like(scores).exponential_()
    return scores - coefficient * exponential.clamp_min(1e-20).log()


class _SplitLikelihood(torch.autograd.Function):
    """Sum over the nodes of the trees of -log p(split | span), linear in the chart.

    The normaliser of a span is built from those of its parts along the best edges,
    z_c = log(exp z_left + exp v_cut + exp z_right), in place of a sum over the whole span.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, layout: ChartLayout, induced: InducedTrees) -> Tensor:
        ctx.layout, ctx.induced = layout, induced
        if use_triton(scores):
            from gpst.kernels.gpu.trees import tree_likelihood

            total, z = tree_likelihood(scores, *_tree_arguments(layout, induced))
            ctx.save_for_backward(scores, z)
            return total
        z = scores.new_full((layout.num_cells,), -torch.inf)
        for level in layout.levels:
            cells = level.cells
            edge = induced.best_edge[layout.internal(cells)]
            z[cells] = torch.logsumexp(
                torch.stack(
                    (z[layout.left[edge]], scores[layout.cut[edge]], z[layout.right[edge]])
                ),
                0,
            )
        internal = slice(layout.num_tokens, layout.num_cells)
        chosen = scores[layout.cut[induced.best_edge]]
        ctx.save_for_backward(scores, z)
        return torch.where(induced.marked[internal] == 1, z[internal] - chosen, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad_out,) = grad_outputs
        scores, z = ctx.saved_tensors
        layout: ChartLayout = ctx.layout
        induced: InducedTrees = ctx.induced
        if use_triton(scores):
            from gpst.kernels.gpu.trees import tree_likelihood_backward

            arguments = _tree_arguments(layout, induced)
            return tree_likelihood_backward(scores, *arguments, z, grad_out), None, None
        grad_z = induced.marked.to(scores.dtype)
        grad_scores = torch.zeros_like(scores)
        for level in reversed(layout.levels):
            cells = level.cells
            edge = induced.best_edge[layout.internal(cells)]
            marked = induced.marked[cells].to(scores.dtype)
            grad, top, cut = grad_z[cells] * marked, z[cells], layout.cut[edge]
            for child in (layout.left[edge], layout.right[edge]):
                grad_z.index_add_(0, child, grad * torch.exp(z[child] - top))
            grad_scores.index_add_(0, cut, grad * torch.exp(scores[cut] - top) - marked)
        return grad_out * grad_scores, None, None


def _tree_arguments(
    layout: ChartLayout, induced: InducedTrees
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor], Tensor]:
    edges = layout.left, layout.right, layout.cut
    return layout.level_starts, induced.best_edge, edges, induced.marked


def split_loss(
    scores: Float[Tensor, "N"], layout: ChartLayout, induced: InducedTrees
) -> Float[Tensor, ""]:
    """Sum over splits of the cross entropy of the chosen split among its span's boundaries (L_p).

    Args:
        scores: v without noise.
    """
    return _SplitLikelihood.apply(scores, layout, induced)  # type: ignore[no-any-return]
