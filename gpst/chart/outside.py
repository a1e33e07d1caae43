"""The outside pass, top-down over the outside levels of the layout (paper 3.1, equations 3-4).

For every message (parent p, sibling s -> child c):

    m = f_beta(o_p, i_s)     b = phi_beta(o_p, i_s)     o_c = sum over c's parents of softmax(b) m

phi_beta has a map for parents, one for left and one for right siblings. The root's outside vector
is learned. A child is computed when all its parents are, so the softmax
is exact and in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpst.chart.inside import fits_fused
from gpst.chart.layout import ChartLayout
from gpst.chart.levels import OutsideLevel
from gpst.chart.pair_pass import PairPass
from gpst.chart.pairs import OutputGradients, Pairs
from gpst.kernels.choice import use_triton
from gpst.layers.composition import Decomposition, PairMaps


@dataclass(frozen=True)
class _Settings:
    layout: ChartLayout
    decomposition: PairMaps
    with_gradient: bool
    recompute: bool


def outside(
    layout: ChartLayout,
    decomposition: Decomposition,
    inside_ae: Float[Tensor, "C D"],
    recompute: bool = False,
    whole_levels: bool = True,
) -> Float[Tensor, "N D"]:
    """Outside vectors of the tokens.

    Args:
        inside_ae: inside vectors, the route with live weights.
        recompute: keep no activations of f_beta; compute them again in the backward pass.
        whole_levels: by kernels of whole levels, where there are any; false: level by level.
    """
    maps = decomposition.linear_maps()
    if whole_levels and fits_fused(layout, inside_ae):
        from gpst.chart.fused_passes import FusedOutside

        given = layout, maps, recompute, inside_ae, decomposition.root
        return FusedOutside.apply(*given, *maps.tensors)  # type: ignore[no-any-return]
    settings = _Settings(layout, maps, torch.is_grad_enabled(), recompute)
    return _Outside.apply(settings, inside_ae, decomposition.root, *maps.tensors)  # type: ignore[no-any-return]


def segment_softmax(
    scores: Float[Tensor, "P"], segment: Int64[Tensor, "P"], num_segments: int
) -> Float[Tensor, "P"]:
    """Softmax within segments.

    Args:
        segment: from 0 to num_segments - 1, each at least once.
    """
    top = scores.new_empty(num_segments)
    top.scatter_reduce_(0, segment, scores, "amax", include_self=False)
    exponent = torch.exp(scores - top[segment])
    total = torch.zeros_like(top).index_add_(0, segment, exponent)
    return exponent / total[segment]


def _as_siblings(layout: ChartLayout) -> Int64[Tensor, "_"]:
    """Row of each message's sibling in `Siblings.values`: of a left child the right one's."""
    return layout.message_sibling + (1 - layout.message_side) * layout.num_cells


def _pairs(
    layout: ChartLayout,
    level: OutsideLevel,
    outside_table: Tensor,
    inside_ae: Tensor,
    siblings: Tensor,
) -> Pairs:
    """Parents' outside vectors and siblings' inside vectors of a level's messages."""
    messages = level.messages
    return Pairs(
        outside_table,
        layout.message_parent[messages],
        inside_ae,
        layout.message_sibling[messages],
        layout.message_side[messages],
        siblings[messages],
    )


def _offsets(child: Int64[Tensor, "P"], size: int) -> Int64[Tensor, "{size}+1"]:
    """Where the messages to each child begin; they are sorted by child."""
    return torch.searchsorted(child, torch.arange(size + 1, device=child.device))


def _grad_scores(
    vectors: Float[Tensor, "P D"],
    weights: Float[Tensor, "P"],
    child: Int64[Tensor, "P"],
    grad_mixed: Float[Tensor, "children D"],
) -> Float[Tensor, "P"]:
    """Gradient of the messages' scores from that of the children's vectors."""
    if use_triton(vectors):
        from gpst.kernels.gpu.segments import segment_mix_backward

        offsets = _offsets(child, len(grad_mixed))
        return segment_mix_backward(vectors, weights, offsets, grad_mixed)[0]
    grad_w = (vectors * grad_mixed.index_select(0, child)).sum(1)
    along = torch.zeros_like(grad_mixed[:, 0]).index_add_(0, child, weights * grad_w)
    return weights * (grad_w - along[child])


class _Outside(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, settings: _Settings, inside_ae: Tensor, root: Tensor, *_: Tensor
    ) -> Tensor:
        layout, exact = settings.layout, torch.promote_types(inside_ae.dtype, torch.float32)
        table = inside_ae.new_empty(layout.num_cells, inside_ae.shape[1])
        table[: layout.num_sentences] = root
        weights = inside_ae.new_empty(len(layout.message_child), dtype=exact)
        passage = PairPass(
            settings.decomposition, inside_ae, settings.with_gradient, settings.recompute
        )
        if layout.outside_levels:
            passage.project_siblings(inside_ae)
        siblings, vectors_of_levels = _as_siblings(layout), []
        for level in layout.outside_levels:
            vectors, scores = passage.forward(_pairs(layout, level, table, inside_ae, siblings))
            vectors_of_levels.append(vectors)
            child, size = layout.message_child[level.messages], level.last_row - level.first_row
            if use_triton(vectors):
                from gpst.kernels.gpu.segments import segment_mix

                mix = segment_mix(vectors, scores, _offsets(child, size))
                mixed, w = mix.values, mix.weights
            else:
                w = segment_softmax(scores, child, size)
                mixed = torch.zeros(size, table.shape[1], dtype=exact, device=table.device)
                mixed.index_add_(0, child, w.unsqueeze(1) * vectors)
            weights[level.messages] = w
            table[level.rows] = mixed.to(table.dtype)
        if settings.with_gradient:
            ctx.settings, ctx.passage, ctx.vectors = settings, passage, vectors_of_levels
            ctx.save_for_backward(table, inside_ae, weights, siblings)
        return table.index_select(0, layout.outside_row[: layout.num_tokens])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad_out_tokens,) = grad_outputs
        settings: _Settings = ctx.settings
        layout, passage = settings.layout, ctx.passage
        table, inside_ae, weights, siblings = ctx.saved_tensors
        grad_outside = torch.zeros(1, *table.shape, dtype=weights.dtype, device=table.device)
        grad_outside[0, layout.outside_row[: layout.num_tokens]] = grad_out_tokens.to(weights.dtype)
        grad_inside = torch.zeros_like(grad_outside)
        for level, vectors in zip(
            reversed(layout.outside_levels), reversed(ctx.vectors), strict=True
        ):
            child, w = layout.message_child[level.messages], weights[level.messages]
            grad_mixed = grad_outside[:, level.rows]
            grad_out = OutputGradients(
                grad_mixed, child, w, _grad_scores(vectors, w, child, grad_mixed[0])
            )
            pairs = _pairs(layout, level, table, inside_ae, siblings)
            passage.backward(pairs, grad_out, grad_outside, grad_inside)
        passage.siblings_backward(inside_ae, grad_inside[0])
        grad_root = grad_outside[0, : layout.num_sentences].sum(0)
        return (
            None,
            grad_inside[0].to(inside_ae.dtype),
            grad_root.to(inside_ae.dtype),
            *passage.sums.gradients(settings.decomposition),
        )
