"""The induced trees and the parser's likelihood: one program walks all levels of the chart.

It goes through a level a block of cells at a time, with a barrier between two levels. A node of a
tree has one parent in it and cuts one boundary: no two cells of the trees write to one place.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_WARPS = 16


@triton.jit(do_not_specialize=["num_cells", "num_edges"])
def _best(scores, edge_start, best, num_cells, num_edges, BLOCK: tl.constexpr):
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = cell < num_cells
    first = tl.load(edge_start + cell, there, 0)
    last = tl.load(edge_start + cell + 1, cell + 1 < num_cells, num_edges)
    last = tl.where(there, last, first)
    found, top = first, tl.load(scores + first, there, 0.0)
    for offset in range(1, tl.max(last - first, 0)):
        score = tl.load(scores + first + offset, first + offset < last, float("-inf"))
        found = tl.where(score > top, first + offset, found)
        top = tl.maximum(score, top)
    tl.store(best + cell, found, there)


@triton.jit(do_not_specialize=["num_tokens", "num_levels"])
def _mark(level_starts, best, left, right, marked, num_tokens, num_levels, BLOCK: tl.constexpr):
    for step in range(num_levels):
        at = level_starts + num_levels - 1 - step
        for begin in range(tl.load(at), tl.load(at + 1), BLOCK):
            cell = begin + tl.arange(0, BLOCK)
            there = cell < tl.load(at + 1)
            node = there & (tl.load(marked + cell, there, 0) == 1)
            edge = tl.load(best + cell - num_tokens, node, 0)
            tl.store(marked + tl.load(left + edge, node, 0), 1, node)
            tl.store(marked + tl.load(right + edge, node, 0), 1, node)
        tl.debug_barrier()


def best_trees(
    scores: Tensor, edge_start: Tensor, level_starts: Tensor, left: Tensor, right: Tensor,
    marked: Tensor,
) -> Tensor:  # fmt: skip
    """(I,) the best edge of each cell; marks the nodes of the trees below the marked roots."""
    best = torch.empty_like(edge_start)
    if len(best):
        grid = (triton.cdiv(len(best), _BLOCK),)
        _best[grid](scores, edge_start, best, len(best), len(scores), _BLOCK)
        num_tokens = len(marked) - len(best)
        _mark[(1,)](
            level_starts, best, left, right, marked, num_tokens, len(level_starts) - 1, _BLOCK,
            num_warps=_WARPS,
        )  # fmt: skip
    return best


@triton.jit(do_not_specialize=["num_tokens", "num_levels"])
def _likelihood(level_starts, best, left, right, cut, marked, scores, z, total, num_tokens,
                num_levels, BLOCK: tl.constexpr):  # fmt: skip
    loss = tl.zeros((BLOCK,), tl.float32)
    for level in range(num_levels):
        at = level_starts + level
        for begin in range(tl.load(at), tl.load(at + 1), BLOCK):
            cell = begin + tl.arange(0, BLOCK)
            there = cell < tl.load(at + 1)
            edge = tl.load(best + cell - num_tokens, there, 0)
            a = tl.load(z + tl.load(left + edge, there, 0), there, float("-inf"))
            b = tl.load(z + tl.load(right + edge, there, 0), there, float("-inf"))
            split = tl.load(scores + tl.load(cut + edge, there, 0), there, 0.0)
            top = tl.maximum(tl.maximum(a, b), split)
            value = top + tl.log(tl.exp(a - top) + tl.exp(b - top) + tl.exp(split - top))
            tl.store(z + cell, value, there)
            node = there & (tl.load(marked + cell, there, 0) == 1)
            loss += tl.where(node, value - split, 0.0)
        tl.debug_barrier()
    tl.store(total, tl.sum(loss, 0))


@triton.jit(do_not_specialize=["num_tokens", "num_levels"])
def _likelihood_backward(level_starts, best, left, right, cut, marked, scores, z, grad_z,
                         grad_scores, grad_out, num_tokens, num_levels,
                         BLOCK: tl.constexpr):  # fmt: skip
    factor = tl.load(grad_out)
    for step in range(num_levels):
        at = level_starts + num_levels - 1 - step
        for begin in range(tl.load(at), tl.load(at + 1), BLOCK):
            cell = begin + tl.arange(0, BLOCK)
            there = cell < tl.load(at + 1)
            node = there & (tl.load(marked + cell, there, 0) == 1)
            grad = tl.load(grad_z + cell, node, 0.0) + 1.0
            edge = tl.load(best + cell - num_tokens, node, 0)
            top = tl.load(z + cell, node, 0.0)
            a, b = tl.load(left + edge, node, 0), tl.load(right + edge, node, 0)
            tl.store(grad_z + a, grad * tl.exp(tl.load(z + a, node, 0.0) - top), node)
            tl.store(grad_z + b, grad * tl.exp(tl.load(z + b, node, 0.0) - top), node)
            split = tl.load(cut + edge, node, 0)
            score = tl.load(scores + split, node, 0.0)
            tl.store(grad_scores + split, factor * (grad * tl.exp(score - top) - 1.0), node)
        tl.debug_barrier()


def tree_likelihood(
    scores: Tensor, level_starts: Tensor, best: Tensor, edges: tuple[Tensor, Tensor, Tensor],
    marked: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(the sum over the nodes of -log p(split | span), the normaliser of each cell)."""
    z, total = scores.new_full(marked.shape, -torch.inf), scores.new_zeros(())
    _likelihood[(1,)](
        level_starts, best, *edges, marked, scores, z, total, len(marked) - len(best),
        len(level_starts) - 1, _BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    return total, z


def tree_likelihood_backward(
    scores: Tensor, level_starts: Tensor, best: Tensor, edges: tuple[Tensor, Tensor, Tensor],
    marked: Tensor, z: Tensor, grad_out: Tensor,
) -> Tensor:  # fmt: skip
    """(N,) gradient of the scores."""
    grad_scores, grad_z = torch.zeros_like(scores), torch.zeros_like(z)
    _likelihood_backward[(1,)](
        level_starts, best, *edges, marked, scores, z, grad_z, grad_scores, grad_out,
        len(marked) - len(best), len(level_starts) - 1, _BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    return grad_scores
