"""Whole levels of the inside and the outside pass, forward: a program to a tile of pairs.

walk.py launches it, for a level's tiles at once or level after level. What is kept for the backward
pass: gpst/chart/fused.py.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from gpst.kernels.gpu.tile import gelu_and_slope, keep, norm_rows, normalised, product, rows_of


@triton.jit
def weight_offsets(L: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
                   ROLES: tl.constexpr, MAPS: tl.constexpr):  # fmt: skip
    """Where each kind of weight begins in the flat tensor of `flat_weights`."""
    biases = L * 3 * D * D
    out = biases + L * ROLES * 3 * D
    out_bias = out + L * D * D
    inner = out_bias + L * D
    inner_bias = inner + L * F * D
    outer = inner_bias + L * F
    outer_bias = outer + L * D * F
    dense = outer_bias + L * D
    dense_bias = dense + MAPS * D * D
    score = dense_bias + MAPS * D
    score_bias = score + MAPS * S * D
    return (biases, out, out_bias, inner, inner_bias, outer, outer_bias, dense, dense_bias, score,
            score_bias)  # fmt: skip


@triton.jit
def _gather(order, first, last, first_table, first_index, second_table, second_index, x,
            D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr):  # fmt: skip
    column = tl.arange(0, WIDTH)
    for begin in range(0, M, 16):
        rows, edge, there = rows_of(order, first, last, begin, 16)
        is_first = rows % 2 == 0
        a = tl.load(first_index + edge, there, 0)
        b = tl.load(second_index + edge, there, 0)
        inside = there[:, None] & (column < D)[None, :]
        ours = inside & is_first[:, None]
        value = tl.load(first_table + a[:, None] * D + column[None, :], ours, 0.0)
        value += tl.load(second_table + b[:, None] * D + column[None, :], inside & ~ours, 0.0)
        tl.store(x + rows[:, None] * D + column[None, :], value, inside)


@triton.jit
def _attend(order, first, last, packed, weight, mixed, layer, key, other_key, threshold, keep_scale,
            D: tl.constexpr, H: tl.constexpr, HEAD: tl.constexpr, PAIRS: tl.constexpr,
            DROPS: tl.constexpr):  # fmt: skip
    """Attention between the two vectors of each pair, as kernels/pair.py has it."""
    slot = first + tl.arange(0, PAIRS)
    there = slot < last
    row = 2 * tl.load(order + slot, there, 0)
    column = tl.arange(0, HEAD)
    width: tl.constexpr = D // H
    scale: tl.constexpr = (D // H) ** -0.5
    inside = there[:, None] & (column < width)[None, :]
    for head in range(H):
        at = packed + row[:, None] * (3 * D) + (head * width + column)[None, :]
        k0 = tl.load(at + D, inside, 0.0).to(tl.float32)
        k1 = tl.load(at + 4 * D, inside, 0.0).to(tl.float32)
        v0 = tl.load(at + 2 * D, inside, 0.0).to(tl.float32)
        v1 = tl.load(at + 5 * D, inside, 0.0).to(tl.float32)
        for vector in tl.static_range(2):
            q = tl.load(at + vector * 3 * D, inside, 0.0).to(tl.float32)
            on_first = 1.0 / (1.0 + tl.exp(-tl.sum(q * (k0 - k1), 1) * scale))
            number = (row + vector) * H + head
            on_first = on_first.to(weight.dtype.element_ty)  # the way back has no more than this
            tl.store(weight + number, on_first, there)
            on_first = on_first.to(tl.float32)
            on_second = 1.0 - on_first
            if DROPS:
                site = 4 * layer
                on_first *= keep(2 * number, key, other_key, site, threshold, keep_scale)
                on_second *= keep(2 * number + 1, key, other_key, site, threshold, keep_scale)
            value = on_first[:, None] * v0 + on_second[:, None] * v1
            to = mixed + (row + vector)[:, None] * D + (head * width + column)[None, :]
            tl.store(to, value, inside)


@triton.jit
def _residual_norm(order, first, last, source, weights, w, b, x, out, stds, site, key, other_key,
                   threshold, keep_scale, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
                   M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DROPS: tl.constexpr,
                   PRECISION: tl.constexpr):  # fmt: skip
    """out = LayerNorm_0(x + dropout(source W^T + b))."""
    rows, _, there = rows_of(order, first, last, 0, M)  # names of a loop are not used before it
    for n in range(0, D, BN):
        column = n + tl.arange(0, BN)
        inside = there[:, None] & (column < D)[None, :]
        y = product(source, rows, there, weights + w, n, K, D, M, BN, BK, False, PRECISION)
        y += tl.load(weights + b + column, column < D, 0.0).to(tl.float32)[None, :]
        at = rows[:, None] * D + column[None, :]
        if DROPS:
            y *= keep(at, key, other_key, site, threshold, keep_scale)
        y += tl.load(x + at, inside, 0.0).to(tl.float32)
        tl.store(out + at, y, inside)
    tl.debug_barrier()
    for begin in range(0, M, 16):
        some, _edges, here = rows_of(order, first, last, begin, 16)
        norm_rows(out, stds, some, here, D, WIDTH)
    tl.debug_barrier()


@triton.jit
def _score_maps(order, first, last, x, weights, dense, dense_bias, score, score_bias, map_gelu,
                map_slope, map_out, num_edges, D: tl.constexpr, S: tl.constexpr,
                COMPARED: tl.constexpr, PAIRS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                PRECISION: tl.constexpr):  # fmt: skip
    ROWS: tl.constexpr = PAIRS if PAIRS > 16 else 16  # of a product, at least
    slot = first + tl.arange(0, ROWS)
    there = slot < last
    edge = tl.load(order + slot, there, 0)
    for m in range(COMPARED):
        here = m * num_edges + edge
        for n in range(0, D, BN):
            column = n + tl.arange(0, BN)
            y = product(x, 2 * edge + m, there, weights + dense + m * D * D, n, D, D, ROWS, BN, BK,
                        False, PRECISION)  # fmt: skip
            y += tl.load(weights + dense_bias + m * D + column, column < D, 0.0)[None, :]
            value, slope = gelu_and_slope(y)
            inside = there[:, None] & (column < D)[None, :]
            at = here[:, None] * D + column[None, :]
            tl.store(map_gelu + at, value, inside)
            tl.store(map_slope + at, slope, inside)
    tl.debug_barrier()
    for m in range(COMPARED):
        here = m * num_edges + edge
        for n in range(0, S, BN):
            column = n + tl.arange(0, BN)
            y = product(map_gelu, here, there, weights + score + m * S * D, n, D, S, ROWS, BN, BK,
                        False, PRECISION)  # fmt: skip
            y += tl.load(weights + score_bias + m * S + column, column < S, 0.0)[None, :]
            inside = there[:, None] & (column < S)[None, :]
            tl.store(map_out + here[:, None] * S + column[None, :], y, inside)
    tl.debug_barrier()


@triton.jit
def tile_forward(order, first, last, first_table, first_index, second_table, second_index, side,
          sibling, sibling_values, weights, x, packed, weight, mixed, attended, attended_std, inner,
          ffn, out_std, vectors, vector_std, map_gelu, map_slope, map_out, scores, num_edges,
          score_scale, key, other_key, threshold, keep_scale,
          L: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr, H: tl.constexpr,
          ROLES: tl.constexpr, COMPARED: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr,
          SCORE: tl.constexpr, PAIRS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
          DROPS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """The slots first..last-1 through the pair model; at most PAIRS of them."""
    M: tl.constexpr = 2 * PAIRS
    (biases, out, out_bias, w_in, in_bias, w_out, w_out_bias, dense, dense_bias, score,
     score_bias) = weight_offsets(L, D, F, S, ROLES, ROLES)  # fmt: skip
    _gather(order, first, last, first_table, first_index, second_table, second_index, x, D, WIDTH,
            M)  # fmt: skip
    tl.debug_barrier()
    _score_maps(order, first, last, x, weights, dense, dense_bias, score, score_bias, map_gelu,
                map_slope, map_out, num_edges, D, S, COMPARED, PAIRS, BN, BK,
                PRECISION)  # fmt: skip
    slot = first + tl.arange(0, PAIRS)
    is_pair = slot < last
    edge = tl.load(order + slot, is_pair, 0)
    column = tl.arange(0, SCORE)
    inside = is_pair[:, None] & (column < S)[None, :]
    one = tl.load(map_out + edge[:, None] * S + column[None, :], inside, 0.0).to(tl.float32)
    if COMPARED == 2:
        at_two = (num_edges + edge)[:, None] * S + column[None, :]
        two = tl.load(map_out + at_two, inside, 0.0).to(tl.float32)
    else:
        row = tl.load(sibling + edge, is_pair, 0)
        two = tl.load(sibling_values + row[:, None] * S + column[None, :], inside, 0.0)
        two = two.to(tl.float32)
    tl.store(scores + edge, tl.sum(one * two, 1) * score_scale, is_pair)

    rows, row_edge, there = rows_of(order, first, last, 0, M)
    role = rows % 2
    if COMPARED == 1:
        role = role * (2 - tl.load(side + row_edge, there, 0))
    for layer in range(L):
        # Layers lie one after another in every buffer but `mixed` and `inner`.
        at = (2 * num_edges).to(tl.int64) * layer
        here, then = x + at * D, x + (at + 2 * num_edges) * D
        for n in range(0, 3 * D, BN):
            columns = n + tl.arange(0, BN)
            y = product(here, rows, there, weights + layer * 3 * D * D, n, D, 3 * D, M, BN, BK,
                        False, PRECISION)  # fmt: skip
            fits = there[:, None] & (columns < 3 * D)[None, :]
            bias = weights + biases + (layer * ROLES + role)[:, None] * (3 * D) + columns[None, :]
            y += tl.load(bias, fits, 0.0).to(tl.float32)
            tl.store(packed + (at + rows)[:, None] * (3 * D) + columns[None, :], y, fits)
        tl.debug_barrier()
        _attend(order, first, last, packed + at * 3 * D, weight + at * H, mixed, layer,
                key, other_key, threshold, keep_scale, D, H, HEAD, PAIRS, DROPS)  # fmt: skip
        tl.debug_barrier()
        _residual_norm(order, first, last, mixed, weights, out + layer * D * D,
                       out_bias + layer * D, here, attended + at * D, attended_std + at,
                       4 * layer + 1, key, other_key, threshold, keep_scale, D, D, WIDTH, M, BN, BK,
                       DROPS, PRECISION)  # fmt: skip
        for n in range(0, F, BN):
            columns = n + tl.arange(0, BN)
            y = product(attended + at * D, rows, there, weights + w_in + layer * F * D, n, D, F, M,
                        BN, BK, False, PRECISION)  # fmt: skip
            bias = weights + in_bias + layer * F + columns
            y += tl.load(bias, columns < F, 0.0).to(tl.float32)[None, :]
            number = rows[:, None] * F + columns[None, :]
            fits = there[:, None] & (columns < F)[None, :]
            tl.store(ffn + at * F + number, y, fits)
            y, _slope = gelu_and_slope(y)
            if DROPS:
                y *= keep(number, key, other_key, 4 * layer + 2, threshold, keep_scale)
            tl.store(inner + number, y, fits)
        tl.debug_barrier()
        _residual_norm(order, first, last, inner, weights, w_out + layer * D * F,
                       w_out_bias + layer * D, attended + at * D, then, out_std + at, 4 * layer + 3,
                       key, other_key, threshold, keep_scale, F, D, WIDTH, M, BN, BK, DROPS,
                       PRECISION)  # fmt: skip
    last_x = x + (2 * num_edges).to(tl.int64) * L * D
    _sum_and_norm(order, first, last, last_x, vectors, vector_std, D, WIDTH, PAIRS)


@triton.jit
def _sum_and_norm(order, first, last, x, vectors, vector_std, D: tl.constexpr, WIDTH: tl.constexpr,
                  PAIRS: tl.constexpr):  # fmt: skip
    """The vector of each pair: LayerNorm_0 of the sum of its two rows."""
    wide = tl.arange(0, WIDTH)
    for begin in range(0, PAIRS, 16):
        some = first + begin + tl.arange(0, 16)
        here = some < last
        edge = tl.load(order + some, here, 0)
        fits = here[:, None] & (wide < D)[None, :]
        both = tl.load(x + 2 * edge[:, None] * D + wide[None, :], fits, 0.0).to(tl.float32)
        both += tl.load(x + (2 * edge + 1)[:, None] * D + wide[None, :], fits, 0.0)
        normed, inverse = normalised(both, fits, D)
        tl.store(vectors + edge[:, None] * D + wide[None, :], normed, fits)
        tl.store(vector_std + edge, inverse, here)
