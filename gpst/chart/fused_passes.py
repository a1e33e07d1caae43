"""The inside and the outside pass by kernels of whole levels, on a GPU in training.

The same maths as in inside.py and outside.py, which keep PyTorch's form: for CPUs and for
evaluation.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpst.chart.fused import FusedPass, collect
from gpst.chart.layout import ChartLayout
from gpst.chart.pair_weights import LinearSum
from gpst.chart.pairs import Pairs
from gpst.chart.scores import ScoreMap, Siblings
from gpst.chart.walk import inside_walk, outside_walk
from gpst.layers.composition import Affine, PairMaps


def _taken(ctx: Any) -> FusedPass:
    """The pass of a node, which goes back once: nodes outlive their backward pass, buffers not."""
    passage, ctx.passage = ctx.passage, None
    return passage


def _messages(layout: ChartLayout, table: Tensor, inside_ae: Tensor, siblings: Tensor) -> Pairs:
    """Args: table: outside vectors. siblings: row of each message's sibling in the maps' values."""
    parent, sibling, side = layout.message_parent, layout.message_sibling, layout.message_side
    return Pairs(table, parent, inside_ae, sibling, side, siblings)


class FusedInside(torch.autograd.Function):
    """(inside_ae, inside_ar, heights, scores, weights) of gpst/chart/inside.py."""

    @staticmethod
    def forward(
        ctx: Any, layout: ChartLayout, maps: PairMaps, temperature: float, two_routes: bool,
        recompute: bool, leaves: Tensor, *_: Tensor,
    ) -> Any:  # fmt: skip
        table = leaves.new_empty(layout.num_cells, leaves.shape[1])
        table[: layout.num_tokens] = leaves
        exact = {"dtype": torch.float32, "device": leaves.device}
        heights = torch.zeros(layout.num_cells, **exact)
        walk = inside_walk(layout)
        passage = FusedPass(maps, walk, leaves, 2, 1 + two_routes, recompute)
        # Not the outputs: a node that holds its own outputs is never freed.
        ctx.mixing = {
            "offset": layout.num_tokens, "left": layout.left, "right": layout.right,
            "INSIDE": True, "inverse_std": torch.empty(layout.num_cells, **exact),
            "inverse_temperature": 1.0 / temperature,
        }  # fmt: skip
        pairs = Pairs(table, layout.left, table, layout.right)
        passage.forward(pairs, None, {**ctx.mixing, "heights": heights, "table": table})
        ctx.passage, ctx.walk = passage, walk
        ctx.two_routes, ctx.num_tokens = two_routes, layout.num_tokens
        ctx.save_for_backward(table, heights)
        scores, weights = passage.scores, passage.pair_weights
        ctx.mark_non_differentiable(scores, weights)
        ctx.set_materialize_grads(False)
        return table, table.view_as(table), heights, scores, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_ae, grad_ar, grad_heights = grad_outputs[:3]
        table, heights = ctx.saved_tensors
        exact = {"dtype": torch.float32, "device": table.device}
        grad_table = torch.zeros(1 + ctx.two_routes, *table.shape, **exact)
        for grad in (grad_ae, grad_ar):
            if grad is not None:
                grad_table[0] += grad
        if ctx.two_routes and grad_ar is not None:
            grad_table[1] += grad_ar
        if grad_heights is None:
            grad_heights = torch.zeros_like(heights)
        mixing = {**ctx.mixing, "heights": heights, "table": table}
        passage = _taken(ctx)
        passage.make_again(Pairs(table, mixing["left"], table, mixing["right"]), None, mixing)
        mixing["grad_heights"] = grad_heights.contiguous()
        rows, _ = passage.backward(None, mixing, grad_table)
        leaves = grad_table[0, : ctx.num_tokens]
        collect(ctx.walk.incoming_starts, ctx.walk.incoming, rows[0], leaves)
        gradients = passage.weight_gradients([])
        return None, None, None, None, None, leaves.to(table.dtype), *gradients


class FusedOutside(torch.autograd.Function):
    """Outside vectors of the tokens, as of gpst/chart/outside.py."""

    @staticmethod
    def forward(
        ctx: Any, layout: ChartLayout, maps: PairMaps, recompute: bool, inside_ae: Tensor,
        root: Tensor, *_: Tensor,
    ) -> Tensor:  # fmt: skip
        table = inside_ae.new_empty(layout.num_cells, inside_ae.shape[1])
        table[: layout.num_sentences] = root
        walk = outside_walk(layout)
        passage = FusedPass(maps, walk, inside_ae, 1, 1, recompute)
        sums = [
            (LinearSum(dense, torch.float32), LinearSum(out, torch.float32))
            for dense, out in maps.scores[1:]
        ]
        of_siblings = [
            ScoreMap(linears, totals, passage.dtype)
            for linears, totals in zip(maps.scores[1:], sums, strict=True)
        ]
        whole = [slice(0, layout.num_cells)]
        siblings = Siblings(of_siblings, inside_ae.to(passage.dtype), whole, True)
        rows = layout.message_sibling + (1 - layout.message_side) * layout.num_cells
        pairs = _messages(layout, table, inside_ae, rows)
        nothing = passage.scores
        mixing = {
            "offset": 0, "left": layout.left, "right": layout.right, "heights": nothing,
            "table": table, "INSIDE": False, "inverse_std": nothing, "inverse_temperature": 1.0,
        }  # fmt: skip
        passage.forward(pairs, siblings.values, mixing)
        ctx.passage, ctx.walk, ctx.mixing, ctx.sums = passage, walk, mixing, sums
        ctx.siblings, ctx.layout, ctx.rows = siblings, layout, rows
        ctx.save_for_backward(inside_ae)
        return table.index_select(0, layout.outside_row[: layout.num_tokens])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (inside_ae,) = ctx.saved_tensors
        layout: ChartLayout = ctx.layout
        passage = _taken(ctx)
        siblings: Siblings = ctx.siblings
        pairs = _messages(layout, ctx.mixing["table"], inside_ae, ctx.rows)
        passage.make_again(pairs, siblings.values, ctx.mixing)
        exact = {"dtype": torch.float32, "device": inside_ae.device}
        grad_table = torch.zeros(1, *inside_ae.shape, **exact)
        tokens = layout.outside_row[: layout.num_tokens]
        grad_table[0].index_copy_(0, tokens, grad_outputs[0].float())
        mixing = {**ctx.mixing, "grad_heights": passage.scores}
        rows, grad_sibling = passage.backward(siblings.values, mixing, grad_table)
        grad_inside = torch.zeros_like(inside_ae, dtype=torch.float32)
        walk, first = ctx.walk, slice(0, layout.num_sentences)
        collect(walk.sibling_starts, walk.sibling_incoming, rows[0], grad_inside)
        collect(walk.incoming_starts, walk.incoming, rows[0], grad_table[0, first])
        siblings.add(ctx.rows, grad_sibling.float())
        siblings.backward(inside_ae.to(passage.dtype), grad_inside)
        totals = [tuple(Affine(total.weight, total.bias) for total in pair) for pair in ctx.sums]
        gradients = passage.weight_gradients(totals)  # type: ignore[arg-type]
        grad_root: Float[Tensor, "D"] = grad_table[0, first].sum(0)
        dtype = inside_ae.dtype
        return None, None, None, grad_inside.to(dtype), grad_root.to(dtype), *gradients
