"""The launches of the fused levels: a level's tiles, or all small levels in one.

A walk has a program to a group of sentences. No sentence reads another one's cells, so that the
programs never wait for each other: each goes through its levels, a barrier between them. A step has
five numbers: its pairs' first and last slot, its cells' first and last place in `cell_order`, and
the routes of gradients that go on below.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from gpst.kernels.gpu.cells import cell_backward, mix_cell
from gpst.kernels.gpu.levels_backward import tile_backward
from gpst.kernels.gpu.levels_forward import tile_forward


@triton.jit(do_not_specialize=[
    "num_edges", "key", "other_key", "threshold", "first", "last",
])  # fmt: skip
def pairs_forward(order, first, last, first_table, first_index, second_table, second_index, side,
        sibling, sibling_values, weights, x, packed, weight, mixed, attended, attended_std, inner,
        ffn, out_std, vectors, vector_std, map_gelu, map_slope, map_out, scores, num_edges,
        score_scale, key, other_key, threshold, keep_scale, L: tl.constexpr, D: tl.constexpr,
        F: tl.constexpr, S: tl.constexpr, H: tl.constexpr, ROLES: tl.constexpr,
        COMPARED: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr, SCORE: tl.constexpr,
        PAIRS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DROPS: tl.constexpr,
        PRECISION: tl.constexpr):  # fmt: skip
    """A level's pairs, a program to PAIRS of them."""
    begin = (first + tl.program_id(0) * PAIRS).to(tl.int64)
    tile_forward(order, begin, tl.minimum(begin + PAIRS, last), first_table, first_index,
        second_table, second_index, side, sibling, sibling_values, weights, x, packed, weight,
        mixed, attended, attended_std, inner, ffn, out_std, vectors, vector_std, map_gelu,
        map_slope, map_out, scores, num_edges, score_scale, key, other_key, threshold, keep_scale,
        L, D, F, S, H, ROLES, COMPARED, WIDTH, HEAD, SCORE, PAIRS, BN, BK, DROPS,
        PRECISION)  # fmt: skip


@triton.jit(do_not_specialize=[
    "num_edges", "key", "other_key", "threshold", "offset",
])  # fmt: skip
def walk_forward(steps, step_starts, order, cell_order, offset, starts, pair_weights, left, right,
        heights, table, inverse_std, inverse_temperature, first_table, first_index, second_table,
        second_index, side, sibling, sibling_values, weights, x, packed, weight, mixed, attended,
        attended_std, inner, ffn, out_std, vectors, vector_std, map_gelu, map_slope, map_out,
        scores, num_edges, score_scale, key, other_key, threshold, keep_scale, L: tl.constexpr,
        D: tl.constexpr, F: tl.constexpr, S: tl.constexpr, H: tl.constexpr, ROLES: tl.constexpr,
        COMPARED: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr, SCORE: tl.constexpr,
        PAIRS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DROPS: tl.constexpr,
        PRECISION: tl.constexpr, INSIDE: tl.constexpr):  # fmt: skip
    """All small levels, a program to a group of sentences."""
    program = tl.program_id(0)
    for step in range(tl.load(step_starts + program), tl.load(step_starts + program + 1)):
        at = steps + 5 * step
        first, last = tl.load(at), tl.load(at + 1)
        for begin in range(first, last, PAIRS):
            tile_forward(order, begin, tl.minimum(begin + PAIRS, last), first_table, first_index,
                second_table, second_index, side, sibling, sibling_values, weights, x, packed,
                weight, mixed, attended, attended_std, inner, ffn, out_std, vectors, vector_std,
                map_gelu, map_slope, map_out, scores, num_edges, score_scale, key, other_key,
                threshold, keep_scale, L, D, F, S, H, ROLES, COMPARED, WIDTH, HEAD, SCORE, PAIRS,
                BN, BK, DROPS, PRECISION)  # fmt: skip
        tl.debug_barrier()
        for place in range(tl.load(at + 2), tl.load(at + 3)):
            number = tl.load(cell_order + place)
            mix_cell(number, offset, starts, vectors, scores, pair_weights, left, right, heights,
                table, inverse_std, inverse_temperature, INSIDE, D, WIDTH)  # fmt: skip
        tl.debug_barrier()


@triton.jit(do_not_specialize=[
    "num_edges", "key", "other_key", "threshold", "first", "last", "offset", "num_cells",
    "routes",
])  # fmt: skip
def pairs_backward(order, first, last, routes, offset, owner, sibling, sibling_values, weights, x,
        packed, weight, mixed, attended, attended_std, inner, ffn, out_std, vectors, vector_std,
        map_slope, map_out, pair_weights, grad_scores, grad_table, num_cells, gradient,
        inner_branch, outer_branch, mixed_branch, grad_sibling, num_edges, score_scale, key,
        other_key, threshold, keep_scale, L: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
        S: tl.constexpr, H: tl.constexpr, ROLES: tl.constexpr, COMPARED: tl.constexpr,
        WIDTH: tl.constexpr, HEAD: tl.constexpr, SCORE: tl.constexpr, PAIRS: tl.constexpr,
        BN: tl.constexpr, BK: tl.constexpr, DROPS: tl.constexpr,
        PRECISION: tl.constexpr):  # fmt: skip
    """A level's pairs, a program to PAIRS of them."""
    base = first
    begin = (first + tl.program_id(0) * PAIRS).to(tl.int64)
    tile_backward(order, begin, tl.minimum(begin + PAIRS, last), base, owner, offset, sibling,
        sibling_values, weights, x, packed, weight, mixed, attended, attended_std, inner, ffn,
        out_std, vectors, vector_std, map_slope, map_out, pair_weights, grad_scores, grad_table,
        num_cells, gradient, inner_branch, outer_branch, mixed_branch, grad_sibling, num_edges,
        routes, score_scale, key, other_key, threshold, keep_scale, L, D, F, S, H, ROLES, COMPARED,
        WIDTH, HEAD, SCORE, PAIRS, BN, BK, DROPS, PRECISION)  # fmt: skip


@triton.jit(do_not_specialize=[
    "num_edges", "key", "other_key", "threshold", "offset", "num_cells", "base",
])  # fmt: skip
def walk_backward(steps, step_starts, order, cell_order, base, offset, starts, left, right,
        heights, table, inverse_std, inverse_temperature, incoming_starts, incoming,
        grad_edge_heights, grad_heights, owner, sibling, sibling_values, weights, x, packed,
        weight, mixed, attended, attended_std, inner, ffn, out_std, vectors, vector_std,
        map_slope, map_out, pair_weights, grad_scores, grad_table, num_cells, gradient,
        inner_branch, outer_branch, mixed_branch, grad_sibling, num_edges, score_scale, key,
        other_key, threshold, keep_scale, L: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
        S: tl.constexpr, H: tl.constexpr, ROLES: tl.constexpr, COMPARED: tl.constexpr,
        WIDTH: tl.constexpr, HEAD: tl.constexpr, SCORE: tl.constexpr, PAIRS: tl.constexpr,
        BN: tl.constexpr, BK: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
        INSIDE: tl.constexpr, ROUTES: tl.constexpr):  # fmt: skip
    """All small levels, highest first; a program to a group of sentences."""
    program = tl.program_id(0)
    begin_step, end_step = tl.load(step_starts + program), tl.load(step_starts + program + 1)
    for back in range(end_step - begin_step):
        at = steps + 5 * (end_step - 1 - back)
        first, last = tl.load(at), tl.load(at + 1)
        routes = tl.minimum(tl.load(at + 4), ROUTES)
        for place in range(tl.load(at + 2), tl.load(at + 3)):
            number = tl.load(cell_order + place)
            cell_backward(number, offset, starts, vectors, pair_weights, left, right, heights,
                table, inverse_std, inverse_temperature, incoming_starts, incoming, gradient,
                2 * num_edges, grad_table, num_cells, grad_scores, grad_edge_heights,
                grad_heights, INSIDE, ROUTES, D, WIDTH)  # fmt: skip
        tl.debug_barrier()
        for begin in range(first, last, PAIRS):
            tile_backward(order, begin, tl.minimum(begin + PAIRS, last), base, owner, offset,
                sibling, sibling_values, weights, x, packed, weight, mixed, attended, attended_std,
                inner, ffn, out_std, vectors, vector_std, map_slope, map_out, pair_weights,
                grad_scores, grad_table, num_cells, gradient, inner_branch, outer_branch,
                mixed_branch, grad_sibling, num_edges, routes, score_scale, key, other_key,
                threshold, keep_scale, L, D, F, S, H, ROLES, COMPARED, WIDTH, HEAD, SCORE, PAIRS,
                BN, BK, DROPS, PRECISION)  # fmt: skip
        tl.debug_barrier()
