"""Softmax within segments and weighted sums in Triton, with the norm and the height in one pass.

A segment is the edges of a cell (inside) or the messages to a child (outside); they lie one after
another. A program goes through one segment twice: for the softmax, then for the sum.
"""

# Kernels take plain numbers for constexpr parameters.
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Mixed(NamedTuple):
    """What the forward pass gives: C segments, E edges, width D."""

    values: Tensor
    """(C, D) weighted sums, normed if so wished; in the type of the vectors."""
    inverse_std: Tensor
    """(C, 1) one over the standard deviation before the norm; fp32."""
    weights: Tensor
    """(E,) fp32"""
    heights: Tensor
    """(C,) weighted sums of the edges' heights; fp32."""


@triton.jit
def softmax_terms(scores, first, last, inverse_temperature):
    """Of a segment's logits: the largest, and the sum of exp of their distances to it."""
    top = tl.load(scores + first) * inverse_temperature
    for edge in range(first + 1, last):
        top = tl.maximum(top, tl.load(scores + edge) * inverse_temperature)
    total = top * 0.0
    for edge in range(first, last):
        total += tl.exp(tl.load(scores + edge) * inverse_temperature - top)
    return top, total


@triton.jit
def norm_row(x, inside, D: tl.constexpr):
    """LayerNorm_0 of one row, and one over its standard deviation."""
    centred = tl.where(inside, x - tl.sum(x, 0) / D, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / D + 1e-5)
    return centred * inverse, inverse


@triton.jit
def softmax_backward(grad_scores, weights, first, last, mean, inverse_temperature):
    """The gradient of a segment's scores from that of its weights, in place.

    One thread writes a number that all threads of the program read: hence the barriers.

    mean: of the weights' gradients, under the weights.
    """
    tl.debug_barrier()
    for edge in range(first, last):
        grad = tl.load(grad_scores + edge) - mean
        tl.debug_barrier()
        tl.store(grad_scores + edge, tl.load(weights + edge) * grad * inverse_temperature)


@triton.jit
def _mix(vectors, scores, heights, offsets, values, inverse_std, weights, mixed_heights,
         inverse_temperature, NORM: tl.constexpr, HEIGHTS: tl.constexpr, D: tl.constexpr,
         WIDTH: tl.constexpr):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    first, last = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    top, total = softmax_terms(scores, first, last, inverse_temperature)
    column = tl.arange(0, WIDTH)
    inside = column < D
    mixed = tl.zeros((WIDTH,), tl.float32)
    height = total * 0.0
    for edge in range(first, last):
        weight = tl.exp(tl.load(scores + edge) * inverse_temperature - top) / total
        tl.store(weights + edge, weight)
        mixed += weight * tl.load(vectors + edge * D + column, inside, 0.0).to(tl.float32)
        if HEIGHTS:
            height += weight * tl.load(heights + edge)
    if HEIGHTS:
        tl.store(mixed_heights + segment, height)
    if NORM:
        mixed, inverse = norm_row(mixed, inside, D)
        tl.store(inverse_std + segment, inverse)
    tl.store(values + segment * D + column, mixed, inside)


def segment_mix(
    vectors: Tensor,
    scores: Tensor,
    offsets: Tensor,
    temperature: float = 1.0,
    heights: Tensor | None = None,
    norm: bool = False,
) -> Mixed:
    """Weights = softmax of scores / T in each segment; sums of vectors and heights under them.

    Args:
        vectors: (E, D). scores: (E,) fp32. offsets: (C + 1,) where segments begin; none is empty.
        heights: (E,) fp32.
    """
    num_segments, dim = len(offsets) - 1, vectors.shape[1]
    out = Mixed(
        vectors.new_empty(num_segments, dim),
        scores.new_empty(num_segments, 1),
        torch.empty_like(scores),
        scores.new_empty(num_segments),
    )
    _mix[(num_segments,)](
        vectors, scores, scores if heights is None else heights, offsets, *out,
        1.0 / temperature, norm, heights is not None, dim, triton.next_power_of_2(dim),
    )  # fmt: skip
    return out


@triton.jit
def _mix_backward(vectors, weights, heights, offsets, grad_values, grad_out_heights, grad_scores,
                  grad_heights, inverse_temperature, HEIGHTS: tl.constexpr, D: tl.constexpr,
                  WIDTH: tl.constexpr):  # fmt: skip
    segment = tl.program_id(0).to(tl.int64)
    first, last = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    column = tl.arange(0, WIDTH)
    inside = column < D
    g = tl.load(grad_values + segment * D + column, inside, 0.0).to(tl.float32)
    grad_out_height = tl.sum(g, 0) * 0.0
    if HEIGHTS:
        grad_out_height = tl.load(grad_out_heights + segment)
    mean = grad_out_height * 0.0
    for edge in range(first, last):
        grad = tl.sum(g * tl.load(vectors + edge * D + column, inside, 0.0), 0)
        if HEIGHTS:
            grad += grad_out_height * tl.load(heights + edge)
        weight = tl.load(weights + edge)
        tl.store(grad_scores + edge, grad)
        mean += weight * grad
        if HEIGHTS:
            tl.store(grad_heights + edge, weight * grad_out_height)
    softmax_backward(grad_scores, weights, first, last, mean, inverse_temperature)


def segment_mix_backward(
    vectors: Tensor,
    weights: Tensor,
    offsets: Tensor,
    grad_values: Tensor,
    temperature: float = 1.0,
    heights: Tensor | None = None,
    grad_out_heights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the scores and of the edges' heights.

    Args:
        grad_values: (C, D) gradient of the weighted sums (before a norm).
        grad_out_heights: (C,) gradient of the segments' heights.
    """
    dim = vectors.shape[1]
    grad_scores, grad_heights = torch.empty_like(weights), torch.zeros_like(weights)
    with_heights = heights is not None and grad_out_heights is not None
    _mix_backward[(len(offsets) - 1,)](
        vectors, weights, heights if with_heights else weights, offsets, grad_values.contiguous(),
        grad_out_heights if with_heights else weights, grad_scores, grad_heights, 1.0 / temperature,
        with_heights, dim, triton.next_power_of_2(dim),
    )  # fmt: skip
    return grad_scores, grad_heights
