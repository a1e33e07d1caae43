"""The outside pass, top-down over the outside levels of the plan (paper 3.1, equations 3-4).

For every message (parent p, sibling s -> child c):

    m = f_beta(o_p, i_s)     b = phi_beta(o_p, i_s)     o_c = sum over c's parents of softmax(b) m

The root's outside vector is learned. A child is computed when all its parents are, so the softmax
is exact and in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpst.chart.local import LevelGraph, add_up, filled, gradients
from gpst.chart.plan import ChartPlan, OutsideLevel
from gpst.composition import Decomposition


@dataclass(frozen=True)
class _Settings:
    plan: ChartPlan
    decomposition: Decomposition
    with_graph: bool
    recompute: bool


def outside(
    plan: ChartPlan, decomposition: Decomposition, inside_ae: Tensor, recompute: bool = False
) -> Tensor:
    """(N, D) outside vectors of the tokens.

    Args:
        inside_ae: (C, D) inside vectors, the route with live weights.
        recompute: keep no activations of f_beta; compute them again in the backward pass.
    """
    settings = _Settings(plan, decomposition, torch.is_grad_enabled(), recompute)
    parameters = tuple(p for p in decomposition.parameters() if p is not decomposition.root)
    return _Outside.apply(settings, inside_ae, decomposition.root, *parameters)  # type: ignore[no-any-return]


def segment_softmax(scores: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Softmax within segments.

    Args:
        scores: (M,). segment: (M,) from 0 to num_segments - 1, each at least once.
    """
    top = scores.new_empty(num_segments)
    top.scatter_reduce_(0, segment, scores, "amax", include_self=False)
    exponent = torch.exp(scores - top[segment])
    total = torch.zeros_like(top).index_add_(0, segment, exponent)
    return exponent / total[segment]


def _senders(
    plan: ChartPlan, level: OutsideLevel, outside_table: Tensor, inside_ae: Tensor
) -> tuple[Tensor, Tensor]:
    """(parents' outside vectors, siblings' inside vectors) of a level's messages."""
    messages = level.messages
    return (
        outside_table.index_select(0, plan.message_parent[messages]),
        inside_ae.index_select(0, plan.message_sibling[messages]),
    )


class _Outside(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, settings: _Settings, inside_ae: Tensor, root: Tensor, *parameters: Tensor
    ) -> Tensor:
        plan, exact = settings.plan, torch.promote_types(inside_ae.dtype, torch.float32)
        table = inside_ae.new_empty(plan.num_cells, inside_ae.shape[1])
        table[: plan.num_sentences] = root
        weights = inside_ae.new_empty(len(plan.message_child), dtype=exact)
        graphs = []
        for level in plan.outside_levels:
            messages, rows = level.messages, level.rows
            function = partial(settings.decomposition, side=plan.message_side[messages])
            parent, sibling = _senders(plan, level, table, inside_ae)
            if settings.with_graph:
                graph = LevelGraph(function, table.device, settings.recompute)
                vectors, scores = graph.forward(parent, sibling)
                graphs.append(graph)
            else:
                vectors, scores = function(parent, sibling)
            child, size = plan.message_child[messages], level.last_row - level.first_row
            w = segment_softmax(scores, child, size)
            weights[messages] = w
            mixed = torch.zeros(size, table.shape[1], dtype=exact, device=table.device)
            mixed.index_add_(0, child, w.unsqueeze(1) * vectors)
            table[rows] = mixed.to(table.dtype)
        ctx.settings, ctx.graphs, ctx.parameters = settings, graphs, parameters
        ctx.save_for_backward(table, inside_ae, weights)
        return table.index_select(0, plan.outside_row[: plan.num_tokens])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (from_tokens,) = grad_outputs
        settings: _Settings = ctx.settings
        plan, graphs = settings.plan, ctx.graphs
        table, inside_ae, weights = ctx.saved_tensors
        grad_outside = torch.zeros_like(table, dtype=weights.dtype)
        grad_outside[plan.outside_row[: plan.num_tokens]] = from_tokens.to(weights.dtype)
        grad_inside = torch.zeros_like(inside_ae, dtype=weights.dtype)
        to_parameters: list[Tensor | None] = [None] * len(ctx.parameters)
        for level in reversed(plan.outside_levels):
            messages, rows = level.messages, level.rows
            inputs, vectors, scores = graphs.pop().rebuild(
                partial(_senders, plan, level, table, inside_ae)
            )
            child, w = plan.message_child[messages], weights[messages]
            into_child = grad_outside[rows].index_select(0, child)
            into_w = (vectors.detach() * into_child).sum(1)
            along = torch.zeros_like(grad_outside[rows, 0]).index_add_(0, child, w * into_w)
            into_scores = w * (into_w - along[child])
            part, (to_parent, to_sibling), _ = gradients(
                (vectors, scores), inputs, ctx.parameters, w.unsqueeze(1) * into_child, into_scores
            )
            add_up(to_parameters, part)
            grad_outside.index_add_(
                0, plan.message_parent[messages], to_parent.to(grad_outside.dtype)
            )
            grad_inside.index_add_(
                0, plan.message_sibling[messages], to_sibling.to(grad_inside.dtype)
            )
        to_root = grad_outside[: plan.num_sentences].sum(0)
        return (
            None,
            grad_inside.to(inside_ae.dtype),
            to_root.to(inside_ae.dtype),
            *filled(to_parameters, ctx.parameters),
        )
