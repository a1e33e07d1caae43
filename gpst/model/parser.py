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
from gpst.kernels.gelu import gelu
from gpst.kernels.product import Linear
from gpst.layers.transformer import at_least_fp32, init_linear, init_std


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


def _rotate(
    x: Float[Tensor, "N *heads d"], position: Int64[Tensor, "N"]
) -> Float[Tensor, "N *heads d"]:
    """Rotary positions: features 2i and 2i+1 turned by position / 10000^(2i/d)."""
    dim = x.shape[-1]
    rate = 10000.0 ** (-torch.arange(0, dim, 2, device=x.device, dtype=torch.float32) / dim)
    angle = position.to(torch.float32).view(-1, *[1] * (x.ndim - 1)) * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
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

    def _attend(self, x: Float[Tensor, "P D"], padding: _Padding) -> Float[Tensor, "P D"]:
        packed = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1))
        turned = _rotate(packed[:, :2], padding.position)
        packed = torch.cat((turned, packed[:, 2:]), 1)
        outputs: list[Tensor] = []
        for group, mask in zip(packed.split(padding.sizes), padding.masks, strict=True):
            rows = group.unflatten(0, (len(mask), -1))
            query, key, value = rows.permute(2, 0, 3, 1, 4).unbind(0)
            attended = F.scaled_dot_product_attention(query, key, value, mask)
            outputs.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).flatten(1)

    def forward(self, x: Float[Tensor, "P D"], padding: _Padding) -> Float[Tensor, "P D"]:
        x = x + self.attention_out(self._attend(self.attention_norm(x), padding))
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
        padding = _Padding.of(batch)
        x = self.embedding(batch.tokens.index_select(0, padding.token))
        for layer in self.layers:
            x = layer(x, padding)
        x = self.norm(x.index_select(0, padding.row))
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
        ctx.layout, ctx.induced = layout, induced
        return torch.where(induced.marked[internal] == 1, z[internal] - chosen, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad_out,) = grad_outputs
        scores, z = ctx.saved_tensors
        layout: ChartLayout = ctx.layout
        induced: InducedTrees = ctx.induced
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


def split_loss(
    scores: Float[Tensor, "N"], layout: ChartLayout, induced: InducedTrees
) -> Float[Tensor, ""]:
    """Sum over splits of the cross entropy of the chosen split among its span's boundaries (L_p).

    Args:
        scores: v without noise.
    """
    return _SplitLikelihood.apply(scores, layout, induced)  # type: ignore[no-any-return]
