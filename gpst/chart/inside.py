"""The inside pass, bottom-up over the levels of the plan (paper 3.1, equations 1-2).

For every edge e = (l, r -> c):

    m_e = f_alpha(i_l, i_r)             s_e = phi_alpha(i_l, i_r)
    a_e = softmax of s_e / T over the edges of c
    i_c = LayerNorm_0(sum_e a_e m_e)    h_c = sum_e a_e (1 + max(h_l, h_r))

The same values leave on two routes: `inside_ae`, whose weights a_e are live, and `inside_ar`, whose
weights are constants, so that the auto-regression loss cannot bend the trees (design section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpst.chart.local import LevelGraph, add_up, filled, gradients
from gpst.chart.plan import ChartPlan, Level
from gpst.composition import Composition


@dataclass(frozen=True)
class InsideOutput:
    """What the inside pass gives; C cells, E edges, width D."""

    inside_ae: Tensor
    """(C, D) with live weights: for the outside pass."""
    inside_ar: Tensor
    """(C, D) the same values with constant weights: for the generative model."""
    heights: Tensor
    """(C,) expected height of each cell's tree, in edges; fp32."""
    scores: Tensor
    """(E,) s_e, without gradient."""
    weights: Tensor
    """(E,) a_e, without gradient."""


@dataclass(frozen=True)
class _Settings:
    plan: ChartPlan
    composition: Composition
    temperature: float
    two_routes: bool
    with_graph: bool
    recompute: bool


def inside(
    plan: ChartPlan,
    composition: Composition,
    leaves: Tensor,
    temperature: float = 1.0,
    gradient_stop: bool = True,
    recompute: bool = False,
) -> InsideOutput:
    """Inside vectors of every cell.

    Args:
        leaves: (N, D) inside vectors of the tokens.
        temperature: T of the softmax over the splits of a cell.
        gradient_stop: false gives `inside_ar` live weights as well (ablation).
        recompute: keep no activations of f_alpha; compute them again in the backward pass.
    """
    settings = _Settings(
        plan, composition, temperature, gradient_stop, torch.is_grad_enabled(), recompute
    )
    parameters = tuple(composition.parameters())
    ae, ar, heights, scores, weights = _Inside.apply(settings, leaves, *parameters)
    return InsideOutput(ae, ar if gradient_stop else ae, heights, scores, weights)


def _children(plan: ChartPlan, level: Level, table: Tensor) -> tuple[Tensor, Tensor]:
    edges = level.edges
    return table.index_select(0, plan.left[edges]), table.index_select(0, plan.right[edges])


def _norm_backward(gradient: Tensor, normed: Tensor, inverse_std: Tensor) -> Tensor:
    """Gradient before LayerNorm_0 from the gradient after it."""
    mean = gradient.mean(-1, keepdim=True)
    along = (gradient * normed).mean(-1, keepdim=True)
    return inverse_std * (gradient - mean - normed * along)


class _Inside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: _Settings, leaves: Tensor, *parameters: Tensor) -> Any:
        plan, exact = settings.plan, torch.promote_types(leaves.dtype, torch.float32)
        num_edges, dim = len(plan.parent), leaves.shape[1]
        table = leaves.new_empty(plan.num_cells, dim)
        table[: plan.num_tokens] = leaves
        heights = leaves.new_zeros(plan.num_cells, dtype=exact)
        scores = leaves.new_empty(num_edges, dtype=exact)
        weights = leaves.new_empty(num_edges, dtype=exact)
        inverse_std = leaves.new_empty(plan.num_cells, 1, dtype=exact)
        graphs = []
        for level in plan.levels:
            left, right = _children(plan, level, table)
            if settings.with_graph:
                graph = LevelGraph(settings.composition, leaves.device, settings.recompute)
                vectors, level_scores = graph.forward(left, right)
                graphs.append(graph)
            else:
                vectors, level_scores = settings.composition(left, right)
            scores[level.edges] = level_scores
            edge_heights = _edge_heights(plan, level, heights)
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
        ctx.settings, ctx.graphs, ctx.parameters = settings, graphs, parameters
        ctx.save_for_backward(table, heights, weights, inverse_std)
        ctx.mark_non_differentiable(scores, weights)
        ctx.set_materialize_grads(False)
        return table, table.view_as(table), heights, scores, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        from_ae, from_ar, from_heights = grad_outputs[:3]
        settings: _Settings = ctx.settings
        plan = settings.plan
        table, heights, weights, inverse_std = ctx.saved_tensors
        grad_ae = _accumulator(table, from_ae, weights.dtype)
        two_routes = settings.two_routes and from_ar is not None
        grad_ar = _accumulator(table, from_ar, weights.dtype) if two_routes else None
        grad_heights = torch.zeros_like(heights) if from_heights is None else from_heights.clone()
        to_parameters: list[Tensor | None] = [None] * len(ctx.parameters)
        graphs: list[LevelGraph] = ctx.graphs
        for level in reversed(plan.levels):
            inputs, vectors, scores = graphs.pop().rebuild(partial(_children, plan, level, table))
            into = _into_edges(
                settings, level, vectors.detach(), table, heights, weights, inverse_std,
                grad_ae, grad_ar, grad_heights,
            )  # fmt: skip
            part, first, second = gradients((vectors, scores), inputs, ctx.parameters, *into)
            add_up(to_parameters, part)
            for child, gradient in zip((plan.left, plan.right), first, strict=True):
                grad_ae.index_add_(0, child[level.edges], gradient.to(grad_ae.dtype))
            if grad_ar is not None and second is not None:
                for child, gradient in zip((plan.left, plan.right), second, strict=True):
                    grad_ar.index_add_(0, child[level.edges], gradient.to(grad_ar.dtype))
        leaves = grad_ae[: plan.num_tokens]
        if grad_ar is not None:
            leaves = leaves + grad_ar[: plan.num_tokens]
        return None, leaves.to(table.dtype), *filled(to_parameters, ctx.parameters)


def _accumulator(table: Tensor, incoming: Tensor | None, dtype: torch.dtype) -> Tensor:
    if incoming is None:
        return torch.zeros_like(table, dtype=dtype)
    return incoming.to(dtype, copy=True)


def _edge_heights(plan: ChartPlan, level: Level, heights: Tensor) -> Tensor:
    """(edges of the level,) 1 + max(h_l, h_r)."""
    edges = level.edges
    return 1.0 + torch.maximum(heights[plan.left[edges]], heights[plan.right[edges]])


def _into_edges(
    settings: _Settings,
    level: Level,
    vectors: Tensor,
    table: Tensor,
    heights: Tensor,
    weights: Tensor,
    inverse_std: Tensor,
    grad_ae: Tensor,
    grad_ar: Tensor | None,
    grad_heights: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients into m_e (first route), s_e and m_e (second route) of the edges of one level.

    Also sends the heights' gradient down to the children.
    """
    plan, dim = settings.plan, table.shape[1]
    into_vectors = torch.empty(vectors.shape, dtype=weights.dtype, device=table.device)
    second = torch.empty_like(into_vectors) if grad_ar is not None else None
    into_scores = torch.empty_like(into_vectors[:, 0])
    into_heights = torch.empty_like(into_scores)
    edge_heights = _edge_heights(plan, level, heights)
    for block in level.blocks:
        cells, edges, shape = block.cells, block.edges, block.shape
        local = level.local_edges(block)
        a = weights[edges].view(shape)
        normed = table[cells].to(weights.dtype)
        mixed = _norm_backward(grad_ae[cells], normed, inverse_std[cells]).unsqueeze(1)
        into_vectors[local] = (a.unsqueeze(2) * mixed).view(-1, dim)
        if second is not None and grad_ar is not None:
            mixed_ar = _norm_backward(grad_ar[cells], normed, inverse_std[cells]).unsqueeze(1)
            second[local] = (a.unsqueeze(2) * mixed_ar).view(-1, dim)
        from_heights = grad_heights[cells].unsqueeze(1)
        into_a = (vectors[local].view(*shape, dim) * mixed).sum(2)
        into_a = into_a + from_heights * edge_heights[local].view(shape)
        into_s = a * (into_a - (a * into_a).sum(1, keepdim=True)) / settings.temperature
        into_scores[local] = into_s.flatten()
        into_heights[local] = (a * from_heights).flatten()
    left, right = plan.left[level.edges], plan.right[level.edges]
    # The larger child's height counts; equal ones share, as torch.maximum does it.
    share = 0.5 + 0.5 * torch.sign(heights[left] - heights[right])
    grad_heights.index_add_(0, left, into_heights * share)
    grad_heights.index_add_(0, right, into_heights * (1.0 - share))
    return into_vectors, into_scores, second
