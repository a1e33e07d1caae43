"""Cells of the fused levels: softmax over the pairs of a cell and their weighted sum, and back.

A cell of the inside pass has its edges for pairs, a child of the outside pass its messages; those
of one lie one after another. What flows back into a cell is gathered from the pairs that read it:
no two programs add to one place, so that a sum has the same order every time.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from gpst.kernels.gpu.segments import norm_row, softmax_backward, softmax_terms


@triton.jit
def _height(heights, left, right, edge):
    """1 + the greater height of an edge's children."""
    a = tl.load(heights + tl.load(left + edge))
    return 1.0 + tl.maximum(a, tl.load(heights + tl.load(right + edge)))


@triton.jit
def mix_cell(number, offset, starts, vectors, scores, weights, left, right, heights, table,
             inverse_std, inverse_temperature, INSIDE: tl.constexpr, D: tl.constexpr,
             WIDTH: tl.constexpr):  # fmt: skip
    """Row number + offset of the table from the pairs starts[number] .. starts[number + 1] - 1.

    INSIDE: with LayerNorm_0 and the expected height.
    """
    first, last = tl.load(starts + number), tl.load(starts + number + 1)
    top, total = softmax_terms(scores, first, last, inverse_temperature)
    column = tl.arange(0, WIDTH)
    inside = column < D
    mixed = tl.zeros((WIDTH,), tl.float32)
    height = total * 0.0
    for pair in range(first, last):
        weight = tl.exp(tl.load(scores + pair) * inverse_temperature - top) / total
        tl.store(weights + pair, weight)
        mixed += weight * tl.load(vectors + pair * D + column, inside, 0.0).to(tl.float32)
        if INSIDE:
            height += weight * _height(heights, left, right, pair)
    row = number + offset
    if INSIDE:
        tl.store(heights + row, height)
        mixed, inverse = norm_row(mixed, inside, D)
        tl.store(inverse_std + row, inverse)
    tl.store(table + row * D + column, mixed, inside)


@triton.jit(do_not_specialize=["first", "offset"])
def mix_cells(cell_order, first, offset, starts, vectors, scores, weights, left, right, heights,
              table, inverse_std, inverse_temperature, INSIDE: tl.constexpr, D: tl.constexpr,
              WIDTH: tl.constexpr):  # fmt: skip
    """A level's cells, a program each."""
    number = tl.load(cell_order + first + tl.program_id(0))
    mix_cell(number, offset, starts, vectors, scores, weights, left, right, heights, table,
             inverse_std, inverse_temperature, INSIDE, D, WIDTH)  # fmt: skip


@triton.jit
def cell_backward(number, offset, starts, vectors, weights, left, right, heights, table,
                  inverse_std, inverse_temperature, incoming_starts, incoming, grad_rows, num_rows,
                  grad_table, num_cells, grad_scores, grad_edge_heights, grad_heights,
                  INSIDE: tl.constexpr, ROUTES: tl.constexpr, D: tl.constexpr,
                  WIDTH: tl.constexpr):  # fmt: skip
    """The gradient of a cell's weighted sum, in the place of what came from outside the chart;
    those of its pairs' scores."""
    row = number + offset
    column = tl.arange(0, WIDTH)
    inside = column < D
    at = row * D + column
    begin, end = tl.load(incoming_starts + row), tl.load(incoming_starts + row + 1)
    live = tl.load(grad_table + at, inside, 0.0)
    other = live * 0.0
    if ROUTES == 2:
        other = tl.load(grad_table + num_cells * D + at, inside, 0.0)
    height = tl.sum(live, 0) * 0.0
    if INSIDE:
        height = tl.load(grad_heights + row)
    for place in range(begin, end):
        source = tl.load(incoming + place)
        live += tl.load(grad_rows + source * D + column, inside, 0.0).to(tl.float32)
        if ROUTES == 2:
            from_row = (num_rows + source) * D + column
            other += tl.load(grad_rows + from_row, inside, 0.0).to(tl.float32)
        if INSIDE:
            edge = source // 2
            first_height = tl.load(heights + tl.load(left + edge))
            second_height = tl.load(heights + tl.load(right + edge))
            # The larger child's height counts; equal ones share, as torch.maximum does it.
            share = tl.where(first_height > second_height, 1.0, 0.0)
            share = tl.where(first_height == second_height, 0.5, share)
            share = tl.where(source % 2 == 0, share, 1.0 - share)
            height += share * tl.load(grad_edge_heights + edge)
    if INSIDE:
        normed = tl.load(table + at, inside, 0.0).to(tl.float32)
        inverse = tl.load(inverse_std + row)
        mean, along = tl.sum(live, 0) / D, tl.sum(live * normed, 0) / D
        live = tl.where(inside, inverse * (live - mean - normed * along), 0.0)
        if ROUTES == 2:
            mean, along = tl.sum(other, 0) / D, tl.sum(other * normed, 0) / D
            other = tl.where(inside, inverse * (other - mean - normed * along), 0.0)
    tl.store(grad_table + at, live, inside)
    if ROUTES == 2:
        tl.store(grad_table + num_cells * D + at, other, inside)
        live = live - other  # the second route's weights are constants
    first, last = tl.load(starts + number), tl.load(starts + number + 1)
    mean = height * 0.0
    for pair in range(first, last):
        vector = tl.load(vectors + pair * D + column, inside, 0.0).to(tl.float32)
        grad = tl.sum(live * vector, 0)
        weight = tl.load(weights + pair)
        if INSIDE:
            grad += height * _height(heights, left, right, pair)
            tl.store(grad_edge_heights + pair, weight * height)
        tl.store(grad_scores + pair, grad)
        mean += weight * grad
    softmax_backward(grad_scores, weights, first, last, mean, inverse_temperature)


@triton.jit(do_not_specialize=["first", "offset", "num_rows", "num_cells"])
def cells_backward(cell_order, first, offset, starts, vectors, weights, left, right, heights, table,
                   inverse_std, inverse_temperature, incoming_starts, incoming, grad_rows, num_rows,
                   grad_table, num_cells, grad_scores, grad_edge_heights, grad_heights,
                   INSIDE: tl.constexpr, ROUTES: tl.constexpr, D: tl.constexpr,
                   WIDTH: tl.constexpr):  # fmt: skip
    """A level's cells, a program each."""
    number = tl.load(cell_order + first + tl.program_id(0))
    cell_backward(number, offset, starts, vectors, weights, left, right, heights, table,
                  inverse_std, inverse_temperature, incoming_starts, incoming, grad_rows, num_rows,
                  grad_table, num_cells, grad_scores, grad_edge_heights, grad_heights, INSIDE,
                  ROUTES, D, WIDTH)  # fmt: skip


@triton.jit
def collect_rows(incoming_starts, incoming, grad_rows, into, D: tl.constexpr,
                 WIDTH: tl.constexpr):  # fmt: skip
    """into[row] += the gradients of the pairs' rows that read it; a program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < D
    total = tl.load(into + row * D + column, inside, 0.0)
    for place in range(tl.load(incoming_starts + row), tl.load(incoming_starts + row + 1)):
        source = tl.load(incoming + place)
        total += tl.load(grad_rows + source * D + column, inside, 0.0).to(tl.float32)
    tl.store(into + row * D + column, total, inside)
