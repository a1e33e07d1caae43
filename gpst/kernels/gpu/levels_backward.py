"""Whole levels of the inside and the outside pass, backward: a program to a tile of pairs.

A buffer that nothing reads any more but a product with what it will hold takes the gradient in its
place: `ffn`, `packed`, the outputs and slopes of the score maps. The gradients of the weights are
products of whole buffers, after the last level (gpst/chart/fused_gradients.py). The second route,
whose parameters' gradients are in the first, goes through the room behind a buffer's layers.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from gpst.kernels.gpu.levels_forward import weight_offsets
from gpst.kernels.gpu.tile import gelu_and_slope, keep, norm_backward, product, rows_of


@triton.jit
def _into_pairs(order, first, last, owner, offset, weights, grad_table, num_cells, vectors,
                vector_std, gradient, num_rows, routes, D: tl.constexpr, WIDTH: tl.constexpr,
                M: tl.constexpr):  # fmt: skip
    """Gradient of both rows of each pair from that of the cell it belongs to."""
    column = tl.arange(0, WIDTH)
    for begin in range(0, M, 16):
        rows, edge, there = rows_of(order, first, last, begin, 16)
        inside = there[:, None] & (column < D)[None, :]
        cell = tl.load(owner + edge, there, 0) + offset
        weight = tl.load(weights + edge, there, 0.0)
        at = edge[:, None] * D + column[None, :]
        normed = tl.load(vectors + at, inside, 0.0).to(tl.float32)
        inverse = tl.load(vector_std + edge, there, 0.0)
        for route in range(routes):
            from_cell = (route * num_cells + cell)[:, None] * D + column[None, :]
            grad = tl.load(grad_table + from_cell, inside, 0.0) * weight[:, None]
            grad = norm_backward(grad, normed, inverse, D)
            to = (route * num_rows + rows)[:, None] * D + column[None, :]
            tl.store(gradient + to, grad, inside)


@triton.jit
def _through_norm(order, first, last, base, gradient, route_rows, normed, stds, at, branch, room,
                  route, site, key, other_key, threshold, keep_scale, D: tl.constexpr,
                  WIDTH: tl.constexpr, M: tl.constexpr, DROPS: tl.constexpr):  # fmt: skip
    """Through a residual's norm, in place; `branch` takes what goes into the residual branch."""
    column = tl.arange(0, WIDTH)
    for begin in range(0, M, 16):
        rows, _, there = rows_of(order, first, last, begin, 16)
        local = 2 * (first - base) + begin + tl.arange(0, 16)
        inside = there[:, None] & (column < D)[None, :]
        here = gradient + (route_rows + rows)[:, None] * D + column[None, :]
        grad = tl.load(here, inside, 0.0).to(tl.float32)
        n = tl.load(normed + (at + rows)[:, None] * D + column[None, :], inside, 0.0)
        inverse = tl.load(stds + at + rows, there, 0.0)
        grad = norm_backward(grad, n.to(tl.float32), inverse, D)
        tl.store(here, grad, inside)
        if DROPS:
            number = rows[:, None] * D + column[None, :]
            grad *= keep(number, key, other_key, site, threshold, keep_scale)
        to = tl.where(route == 0, at + rows, room + local)
        tl.store(branch + to[:, None] * D + column[None, :], grad, inside)
    tl.debug_barrier()


@triton.jit
def _add_product(source, source_rows, there, w, gradient, grad_rows, K: tl.constexpr,
                 D: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                 PRECISION: tl.constexpr):  # fmt: skip
    """gradient += source W."""
    for n in range(0, D, BN):
        column = n + tl.arange(0, BN)
        inside = there[:, None] & (column < D)[None, :]
        grad = product(source, source_rows, there, w, n, K, D, M, BN, BK, True, PRECISION)
        here = gradient + grad_rows[:, None] * D + column[None, :]
        tl.store(here, grad + tl.load(here, inside, 0.0).to(tl.float32), inside)
    tl.debug_barrier()


@triton.jit
def _attend_backward(order, first, last, base, packed, weight, mixed, at, room, route, gradient,
                     layer, key, other_key, threshold, keep_scale, D: tl.constexpr,
                     H: tl.constexpr, HEAD: tl.constexpr, PAIRS: tl.constexpr,
                     DROPS: tl.constexpr):  # fmt: skip
    """From the gradient of the mixed values that of queries, keys and values; and mixes them."""
    slot = first + tl.arange(0, PAIRS)
    there = slot < last
    row = 2 * tl.load(order + slot, there, 0)
    local = 2 * (slot - base)
    to = tl.where(route == 0, at + row, room + local)
    column = tl.arange(0, HEAD)
    width: tl.constexpr = D // H
    scale: tl.constexpr = (D // H) ** -0.5
    inside = there[:, None] & (column < width)[None, :]
    for head in range(H):
        columns = (head * width + column)[None, :]
        one = packed + (at + row)[:, None] * (3 * D) + columns
        q0 = tl.load(one, inside, 0.0).to(tl.float32)
        k0 = tl.load(one + D, inside, 0.0).to(tl.float32)
        v0 = tl.load(one + 2 * D, inside, 0.0).to(tl.float32)
        q1 = tl.load(one + 3 * D, inside, 0.0).to(tl.float32)
        k1 = tl.load(one + 4 * D, inside, 0.0).to(tl.float32)
        v1 = tl.load(one + 5 * D, inside, 0.0).to(tl.float32)
        g0 = tl.load(gradient + local[:, None] * D + columns, inside, 0.0).to(tl.float32)
        g1 = tl.load(gradient + (local + 1)[:, None] * D + columns, inside, 0.0).to(tl.float32)
        number0, number1 = row * H + head, (row + 1) * H + head
        w0 = tl.load(weight + at * H + number0, there, 0.0).to(tl.float32)
        w1 = tl.load(weight + at * H + number1, there, 0.0).to(tl.float32)
        along00, along01 = tl.sum(g0 * v0, 1), tl.sum(g0 * v1, 1)
        along10, along11 = tl.sum(g1 * v0, 1), tl.sum(g1 * v1, 1)
        on00, on01, on10, on11 = w0, 1.0 - w0, w1, 1.0 - w1
        if DROPS:
            site = 4 * layer
            m00 = keep(2 * number0, key, other_key, site, threshold, keep_scale)
            m01 = keep(2 * number0 + 1, key, other_key, site, threshold, keep_scale)
            m10 = keep(2 * number1, key, other_key, site, threshold, keep_scale)
            m11 = keep(2 * number1 + 1, key, other_key, site, threshold, keep_scale)
            along00, along01 = along00 * m00, along01 * m01
            along10, along11 = along10 * m10, along11 * m11
            on00, on01, on10, on11 = on00 * m00, on01 * m01, on10 * m10, on11 * m11
        l0 = ((along00 - along01) * w0 * (1.0 - w0) * scale)[:, None]
        l1 = ((along10 - along11) * w1 * (1.0 - w1) * scale)[:, None]
        grad_k0 = l0 * q0 + l1 * q1
        mix = mixed + (at + row)[:, None] * D + columns
        once = inside & (route == 0)
        tl.store(mix, on00[:, None] * v0 + on01[:, None] * v1, once)
        tl.store(mix + D, on10[:, None] * v0 + on11[:, None] * v1, once)
        tl.debug_barrier()  # queries, keys and values give way to their gradients
        into = packed + to[:, None] * (3 * D) + columns
        tl.store(into, l0 * (k0 - k1), inside)
        tl.store(into + 3 * D, l1 * (k0 - k1), inside)
        tl.store(into + D, grad_k0, inside)
        tl.store(into + 4 * D, -grad_k0, inside)
        tl.store(into + 2 * D, g0 * on00[:, None] + g1 * on10[:, None], inside)
        tl.store(into + 5 * D, g0 * on01[:, None] + g1 * on11[:, None], inside)
    tl.debug_barrier()


@triton.jit
def _scores_backward(order, first, last, sibling, sibling_values, weights, dense, score, map_slope,
                     map_out, grad_sibling, grad_scores, gradient, num_edges, score_scale,
                     D: tl.constexpr, S: tl.constexpr, COMPARED: tl.constexpr, SCORE: tl.constexpr,
                     PAIRS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                     PRECISION: tl.constexpr):  # fmt: skip
    """Adds what flows back through the score of each pair."""
    ROWS: tl.constexpr = PAIRS if PAIRS > 16 else 16  # of a product, at least
    slot = first + tl.arange(0, ROWS)
    there = slot < last
    edge = tl.load(order + slot, there, 0)
    column = tl.arange(0, SCORE)
    inside = there[:, None] & (column < S)[None, :]
    grad = (tl.load(grad_scores + edge, there, 0.0) * score_scale)[:, None]
    one_at = edge[:, None] * S + column[None, :]
    one = tl.load(map_out + one_at, inside, 0.0).to(tl.float32)
    if COMPARED == 2:
        two_at = map_out + (num_edges + edge)[:, None] * S + column[None, :]
        two = tl.load(two_at, inside, 0.0).to(tl.float32)
        tl.debug_barrier()
        tl.store(two_at, grad * one, inside)
    else:
        row = tl.load(sibling + edge, there, 0)
        two = tl.load(sibling_values + row[:, None] * S + column[None, :], inside, 0.0)
        two = two.to(tl.float32)
        tl.debug_barrier()
        tl.store(grad_sibling + one_at, grad * one, inside)
    tl.store(map_out + one_at, grad * two, inside)
    tl.debug_barrier()
    for m in range(COMPARED):
        here = m * num_edges + edge
        for n in range(0, D, BN):
            columns = n + tl.arange(0, BN)
            fits = there[:, None] & (columns < D)[None, :]
            y = product(map_out, here, there, weights + score + m * S * D, n, S, D, ROWS, BN, BK,
                        True, PRECISION)  # fmt: skip
            at = map_slope + here[:, None] * D + columns[None, :]
            tl.store(at, y * tl.load(at, fits, 0.0).to(tl.float32), fits)
    tl.debug_barrier()
    for m in range(COMPARED):
        here = m * num_edges + edge
        _add_product(map_slope, here, there, weights + dense + m * D * D, gradient, 2 * edge + m, D,
                     D, ROWS, BN, BK, PRECISION)  # fmt: skip


@triton.jit
def tile_backward(order, first, last, base, owner, offset, sibling, sibling_values, weights, x,
                  packed, weight, mixed, attended, attended_std, inner, ffn, out_std, vectors,
                  vector_std, map_slope, map_out, pair_weights, grad_scores, grad_table, num_cells,
                  gradient, inner_branch, outer_branch, mixed_branch, grad_sibling, num_edges,
                  routes, score_scale, key, other_key, threshold, keep_scale,
                  L: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
                  H: tl.constexpr, ROLES: tl.constexpr, COMPARED: tl.constexpr, WIDTH: tl.constexpr,
                  HEAD: tl.constexpr, SCORE: tl.constexpr, PAIRS: tl.constexpr, BN: tl.constexpr,
                  BK: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """The slots first..last-1 back through the pair model; `gradient` has that of their rows."""
    M: tl.constexpr = 2 * PAIRS
    _, w_attended, _, w_in, _, w_out, _, dense, _, score, _ = weight_offsets(
        L, D, F, S, ROLES, ROLES
    )
    num_rows = (2 * num_edges).to(tl.int64)
    room = num_rows * L
    _into_pairs(order, first, last, owner, offset, pair_weights, grad_table, num_cells, vectors,
                vector_std, gradient, num_rows, routes, D, WIDTH, M)  # fmt: skip
    tl.debug_barrier()
    rows, _, there = rows_of(order, first, last, 0, M)
    local = 2 * (first - base) + tl.arange(0, M)
    for step in range(L):
        layer = L - 1 - step
        at = num_rows * layer
        for n in range(0, F, BN):
            columns = n + tl.arange(0, BN)
            fits = there[:, None] & (columns < F)[None, :]
            number = rows[:, None] * F + columns[None, :]
            z = tl.load(ffn + at * F + number, fits, 0.0).to(tl.float32)
            value, _slope = gelu_and_slope(z)
            if DROPS:
                value *= keep(number, key, other_key, 4 * layer + 2, threshold, keep_scale)
            tl.store(inner + at * F + number, value, fits)
        tl.debug_barrier()  # the first route's gradient takes the place of z
        for back in range(routes):
            route = routes - 1 - back  # the first route takes the place of what the second reads
            route_rows = num_rows * route
            to = tl.where(route == 0, at + rows, room + local)
            _through_norm(order, first, last, base, gradient, route_rows, x + num_rows * D, out_std,
                          at, outer_branch, room, route, 4 * layer + 3, key, other_key, threshold,
                          keep_scale, D, WIDTH, M, DROPS)  # fmt: skip
            for n in range(0, F, BN):
                columns = n + tl.arange(0, BN)
                fits = there[:, None] & (columns < F)[None, :]
                y = product(outer_branch, to, there, weights + w_out + layer * D * F, n, D, F, M,
                            BN, BK, True, PRECISION)  # fmt: skip
                number = rows[:, None] * F + columns[None, :]
                if DROPS:
                    y *= keep(number, key, other_key, 4 * layer + 2, threshold, keep_scale)
                z = tl.load(ffn + at * F + number, fits, 0.0).to(tl.float32)
                _value, slope = gelu_and_slope(z)
                tl.store(ffn + to[:, None] * F + columns[None, :], y * slope, fits)
            tl.debug_barrier()
            _add_product(ffn, to, there, weights + w_in + layer * F * D, gradient,
                         route_rows + rows, F, D, M, BN, BK, PRECISION)  # fmt: skip
            _through_norm(order, first, last, base, gradient, route_rows, attended, attended_std,
                          at, inner_branch, room, route, 4 * layer + 1, key, other_key, threshold,
                          keep_scale, D, WIDTH, M, DROPS)  # fmt: skip
            for n in range(0, D, BN):
                columns = n + tl.arange(0, BN)
                fits = there[:, None] & (columns < D)[None, :]
                y = product(inner_branch, to, there, weights + w_attended + layer * D * D, n, D, D,
                            M, BN, BK, True, PRECISION)  # fmt: skip
                tl.store(mixed_branch + local[:, None] * D + columns[None, :], y, fits)
            tl.debug_barrier()
            _attend_backward(order, first, last, base, packed, weight, mixed, at, room, route,
                             mixed_branch, layer, key, other_key, threshold, keep_scale, D, H, HEAD,
                             PAIRS, DROPS)  # fmt: skip
            _add_product(packed, to, there, weights + layer * 3 * D * D, gradient,
                         route_rows + rows, 3 * D, D, M, BN, BK, PRECISION)  # fmt: skip
    _scores_backward(order, first, last, sibling, sibling_values, weights, dense, score, map_slope,
                     map_out, grad_sibling, grad_scores, gradient, num_edges, score_scale, D, S,
                     COMPARED, SCORE, PAIRS, BN, BK, PRECISION)  # fmt: skip
    tl.debug_barrier()
