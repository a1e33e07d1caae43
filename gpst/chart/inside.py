"""The inside pass, bottom-up over the levels of the layout (paper 3.1, equations 1-2).

For every edge e = (l, r -> c):

    m_e = f_alpha(i_l, i_r)             s_e = phi_alpha(i_l, i_r)
    a_e = softmax of s_e / T over the edges of c
    i_c = LayerNorm_0(sum_e a_e m_e)    h_c = sum_e a_e (1 + max(h_l, h_r))

The same values leave on two routes: `inside_ae`, whose weights a_e are live, and `inside_ar`, whose
weights are constants, so that the auto-regression loss cannot bend the trees (paper 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpst.chart.fused_check import levels_agree
from gpst.chart.layout import ChartLayout
from gpst.chart.levels import Level
from gpst.chart.pair_pass import PairPass
from gpst.chart.pairs import OutputGradients, Pairs
from gpst.kernels.choice import use_triton
from gpst.kernels.pair import add_norm_backward
from gpst.layers.composition import Composition, PairMaps


@dataclass(frozen=True)
class InsideOutput:
    """What the inside pass gives; C cells, E edges, width D."""

    inside_ae: Float[Tensor, "C D"]
    """With live weights: for the outside pass."""
    inside_ar: Float[Tensor, "C D"]
    """The same values with constant weights: for the generative model."""
    heights: Float[Tensor, "C"]
    """Expected height of each cell's tree, in edges; fp32."""
    scores: Float[Tensor, "E"]
    """s_e, without gradient."""
    weights: Float[Tensor, "E"]
    """a_e, without gradient."""


@dataclass(frozen=True)
class _Settings:
    layout: ChartLayout
    composition: PairMaps
    temperature: float
    two_routes: bool
    with_gradient: bool
    recompute: bool


def inside(
    layout: ChartLayout,
    composition: Composition,
    leaves: Float[Tensor, "N D"],
    temperature: float = 1.0,
    gradient_stop: bool = True,
    recompute: bool = False,
    whole_levels: bool = True,
) -> InsideOutput:
    """Inside vectors of every cell.

    Args:
        leaves: inside vectors of the tokens.
        temperature: T of the softmax over the splits of a cell.
        gradient_stop: false gives `inside_ar` live weights as well (ablation).
        recompute: keep no activations of f_alpha; compute them again in the backward pass.
        whole_levels: by kernels of whole levels, where there are any; false: level by level.
    """
    maps = composition.linear_maps()
    outputs: Any
    if whole_levels and fits_fused(layout, leaves):
        from gpst.chart.fused_passes import FusedInside

        given = layout, maps, temperature, gradient_stop, recompute, leaves
        outputs = FusedInside.apply(*given, *maps.tensors)
    else:
        settings = _Settings(
            layout, maps, temperature, gradient_stop, torch.is_grad_enabled(), recompute
        )
        outputs = _Inside.apply(settings, leaves, *maps.tensors)
    ae, ar, heights, scores, weights = outputs
    return InsideOutput(ae, ar if gradient_stop else ae, heights, scores, weights)


def fits_fused(layout: ChartLayout, like: Tensor) -> bool:
    """Whether a pass goes by kernels of whole levels: on a GPU, in training."""
    trains = torch.is_grad_enabled() and bool(layout.levels)
    return trains and use_triton(like) and levels_agree(like.device)


def _pairs(layout: ChartLayout, level: Level, table: Float[Tensor, "C D"]) -> Pairs:
    return Pairs(table, layout.left[level.edges], table, layout.right[level.edges])


def _offsets(layout: ChartLayout, level: Level) -> Tensor:
    """(cells of the level + 1,) where the edges of each cell begin, from the level's first."""
    begin = layout.edge_start[layout.internal(level.cells)] - level.first_edge
    return torch.nn.functional.pad(begin, (0, 1), value=level.last_edge - level.first_edge)


def _edge_heights(
    layout: ChartLayout, level: Level, heights: Float[Tensor, "C"]
) -> Float[Tensor, "edges"]:
    """1 + max(h_l, h_r)."""
    edges = level.edges
    return 1.0 + torch.maximum(heights[layout.left[edges]], heights[layout.right[edges]])


def _mix(
    settings: _Settings,
    level: Level,
    vectors: Float[Tensor, "edges D"],
    edge_heights: Float[Tensor, "edges"],
    table: Float[Tensor, "C D"],
    inverse_std: Float[Tensor, "C 1"],
    heights: Float[Tensor, "C"],
    scores: Float[Tensor, "E"],
    weights: Float[Tensor, "E"],
) -> None:
    """Fills the level's rows of the tables and its weights from its edges' vectors and scores."""
    dim = vectors.shape[1]
    if use_triton(vectors):
        from gpst.kernels.gpu.segments import segment_mix

        cells, offsets = level.cells, _offsets(settings.layout, level)
        values, inverse_std[cells], weights[level.edges], heights[cells] = segment_mix(
            vectors, scores[level.edges], offsets, settings.temperature, edge_heights, norm=True
        )
        table[cells] = values.to(table.dtype)
        return
    for block in level.blocks:
        cells, edges, shape = block.cells, block.edges, block.shape
        local = level.local_edges(block)
        a = torch.softmax(scores[edges].view(shape) / settings.temperature, 1)
        mixed = (a.unsqueeze(2) * vectors[local].view(*shape, dim)).sum(1)
        normed, _, inverse = torch.native_layer_norm(mixed, (dim,), None, None, 1e-5)
        weights[edges] = a.flatten()
        table[cells] = normed.to(table.dtype)
        inverse_std[cells] = inverse
        heights[cells] = (a * edge_heights[local].view(shape)).sum(1)


class _Inside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: _Settings, leaves: Tensor, *_: Tensor) -> Any:
        layout, exact = settings.layout, torch.promote_types(leaves.dtype, torch.float32)
        num_edges, dim = len(layout.parent), leaves.shape[1]
        table = leaves.new_empty(layout.num_cells, dim)
        table[: layout.num_tokens] = leaves
        heights = leaves.new_zeros(layout.num_cells, dtype=exact)
        scores = leaves.new_empty(num_edges, dtype=exact)
        weights = leaves.new_empty(num_edges, dtype=exact)
        inverse_std = leaves.new_empty(layout.num_cells, 1, dtype=exact)
        passage = PairPass(settings.composition, leaves, settings.with_gradient, settings.recompute)
        vectors_of_levels = []
        for level in layout.levels:
            vectors, level_scores = passage.forward(_pairs(layout, level, table))
            vectors_of_levels.append(vectors)
            scores[level.edges] = level_scores
            edge_heights = _edge_heights(layout, level, heights)
            _mix(
                settings, level, vectors, edge_heights, table, inverse_std, heights, scores, weights
            )
        if settings.with_gradient:
            ctx.settings, ctx.passage, ctx.vectors = settings, passage, vectors_of_levels
            ctx.save_for_backward(table, heights, weights, inverse_std)
        ctx.mark_non_differentiable(scores, weights)
        ctx.set_materialize_grads(False)
        return table, table.view_as(table), heights, scores, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_out_ae, grad_out_ar, grad_out_heights = grad_outputs[:3]
        settings: _Settings = ctx.settings
        layout, passage = settings.layout, ctx.passage
        table, heights, weights, inverse_std = ctx.saved_tensors
        two_routes = settings.two_routes and grad_out_ar is not None
        grad_tables = _grad_tables(table, grad_out_ae, grad_out_ar, two_routes, weights.dtype)
        grad_heights = (
            torch.zeros_like(heights) if grad_out_heights is None else grad_out_heights.clone()
        )
        for level, vectors in zip(reversed(layout.levels), reversed(ctx.vectors), strict=True):
            cells = level.cells
            normed, inverse = table[cells].to(weights.dtype), inverse_std[cells]
            grad_mixed = add_norm_backward(grad_tables[:, cells], normed, inverse)
            grad_scores = _through_softmax(
                settings, level, vectors, grad_mixed, heights, weights, grad_heights
            )
            edges = level.edges
            parent = layout.parent[edges] - level.first_cell
            # The second route ends above the tokens, which take the sum of both.
            routes = 1 if level.first_cell == layout.num_tokens else len(grad_mixed)
            grad_out = OutputGradients(grad_mixed[:routes], parent, weights[edges], grad_scores)
            grad = grad_tables[:routes]
            passage.backward(_pairs(layout, level, table), grad_out, grad, grad)
        # Route 0 is the sum of both routes.
        grad_leaves = grad_tables[0, : layout.num_tokens].to(table.dtype)
        return None, grad_leaves, *passage.sums.gradients(settings.composition)


def _grad_tables(
    table: Float[Tensor, "C D"],
    grad_out_ae: Float[Tensor, "C D"] | None,
    grad_out_ar: Float[Tensor, "C D"] | None,
    two: bool,
    dtype: torch.dtype,
) -> Float[Tensor, "R C D"]:
    """Gradients of the inside vectors: of all routes, and of the second alone."""
    grad = torch.zeros(1 + two, *table.shape, dtype=dtype, device=table.device)
    for grad_out in (grad_out_ae, grad_out_ar):
        if grad_out is not None:
            grad[0] += grad_out
    if two and grad_out_ar is not None:
        grad[1] += grad_out_ar
    return grad


def _through_softmax(
    settings: _Settings,
    level: Level,
    vectors: Float[Tensor, "edges D"],
    grad_mixed: Float[Tensor, "R cells D"],
    heights: Float[Tensor, "C"],
    weights: Float[Tensor, "E"],
    grad_heights: Float[Tensor, "C"],
) -> Float[Tensor, "edges"]:
    """Gradient of the scores of a level's edges; sends the heights' down to the children.

    Args:
        vectors: m_e. grad_mixed: gradient of sum_e a_e m_e.
    """
    layout = settings.layout
    live = grad_mixed[0] - grad_mixed[1] if len(grad_mixed) == 2 else grad_mixed[0]
    edge_heights = _edge_heights(layout, level, heights)
    if use_triton(vectors):
        from gpst.kernels.gpu.segments import segment_mix_backward

        grad_scores, grad_edge_heights = segment_mix_backward(
            vectors, weights[level.edges], _offsets(layout, level), live, settings.temperature,
            edge_heights, grad_heights[level.cells],
        )  # fmt: skip
    else:
        grad_scores, grad_edge_heights = _through_dense_softmax(
            settings, level, vectors, live, edge_heights, weights, grad_heights
        )
    left, right = layout.left[level.edges], layout.right[level.edges]
    # The larger child's height counts; equal ones share, as torch.maximum does it.
    share = 0.5 + 0.5 * torch.sign(heights[left] - heights[right])
    grad_heights.index_add_(0, left, grad_edge_heights * share)
    grad_heights.index_add_(0, right, grad_edge_heights * (1.0 - share))
    return grad_scores


def _through_dense_softmax(
    settings: _Settings,
    level: Level,
    vectors: Float[Tensor, "edges D"],
    live: Float[Tensor, "cells D"],
    edge_heights: Float[Tensor, "edges"],
    weights: Float[Tensor, "E"],
    grad_heights: Float[Tensor, "C"],
) -> tuple[Float[Tensor, "edges"], Float[Tensor, "edges"]]:
    """Gradients of the scores and of the heights of a level's edges, block by block."""
    grad_scores = torch.empty_like(weights[level.edges])
    grad_edge_heights = torch.empty_like(grad_scores)
    for block in level.blocks:
        shape, local = block.shape, level.local_edges(block)
        first = block.first_cell - level.first_cell
        a = weights[block.edges].view(shape)
        grad_out_heights = grad_heights[block.cells].unsqueeze(1)
        live_block = live[first : first + block.num_cells].unsqueeze(2)
        grad_a = torch.bmm(vectors[local].view(*shape, -1).to(live.dtype), live_block).squeeze(2)
        grad_a = grad_a + grad_out_heights * edge_heights[local].view(shape)
        grad_s = a * (grad_a - (a * grad_a).sum(1, keepdim=True)) / settings.temperature
        grad_scores[local] = grad_s.flatten()
        grad_edge_heights[local] = (a * grad_out_heights).flatten()
    return grad_scores, grad_edge_heights
