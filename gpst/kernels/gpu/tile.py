"""What a program of the fused levels does to a tile of pairs: products, norms, dropout.

A program goes through its tile phase by phase. Between two phases the tile lies in the buffers that
the backward pass reads anyway, so that neither registers nor shared memory bound the widths; a
barrier makes what all threads wrote visible to all threads of the program. Rows of the buffers are
2e + v for vector v of edge e.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of(order, first, last, begin, COUNT: tl.constexpr):
    """(rows, edges, whether each is there) of COUNT rows from row `begin` of a tile on.

    order: edge in each slot; the tile has slots first..last-1.
    """
    number = begin + tl.arange(0, COUNT)
    slot = first + number // 2
    there = slot < last
    edge = tl.load(order + slot, there, 0)
    return 2 * edge + number % 2, edge, there


@triton.jit
def product(x, x_rows, there, w, n, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
            BN: tl.constexpr, BK: tl.constexpr, BACK: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    """(M, BN) fp32: columns n.. of x W^T, W (N, K); of x W, W (K, N), where BACK."""
    columns = n + tl.arange(0, BN)
    total = tl.zeros((M, BN), tl.float32)
    for k in range(0, K, BK):
        inner = k + tl.arange(0, BK)
        a = tl.load(
            x + x_rows[:, None] * K + inner[None, :], there[:, None] & (inner < K)[None, :], 0.0
        )
        if BACK:
            at = inner[:, None] * N + columns[None, :]
        else:
            at = columns[None, :] * K + inner[:, None]
        b = tl.load(w + at, (inner < K)[:, None] & (columns < N)[None, :], 0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def keep(index, key, other_key, site, threshold, scale):
    """What dropout multiplies with: 0 or 1 / (1 - rate), by the hash of kernels/dropout.py.

    index: number of the value among those of its site.
    """
    x = (index.to(tl.uint32) ^ key.to(tl.uint32)) * 0x9E3779B9
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = ((x ^ (x >> 15)) + (other_key + site * 977).to(tl.uint32)) * 0x846CA68B
    x = x ^ (x >> 16)
    return tl.where((x & 0xFFFF) >= threshold, scale, 0.0)


@triton.jit
def norm_rows(buffer, stds, rows, there, D: tl.constexpr, WIDTH: tl.constexpr):
    """LayerNorm_0 of rows, in place; one over their standard deviations."""
    column = tl.arange(0, WIDTH)
    inside = there[:, None] & (column < D)[None, :]
    at = buffer + rows[:, None] * D + column[None, :]
    x = tl.load(at, inside, 0.0).to(tl.float32)
    normed, inverse = normalised(x, inside, D)
    tl.store(at, normed, inside)
    tl.store(stds + rows, inverse, there)


@triton.jit
def normalised(x, inside, D: tl.constexpr):
    """LayerNorm_0 of each row of x, and one over its standard deviation."""
    centred = tl.where(inside, x - (tl.sum(x, 1) / D)[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / D + 1e-5)
    return centred * inverse[:, None], inverse


@triton.jit
def norm_backward(gradient, normed, inverse, D: tl.constexpr):
    """Gradient of x from that of LayerNorm_0(x)."""
    mean = tl.sum(gradient, 1) / D
    along = tl.sum(gradient * normed, 1) / D
    return inverse[:, None] * (gradient - mean[:, None] - normed * along[:, None])


@triton.jit
def gelu_and_slope(x):
    """x Phi(x) and its derivative."""
    below = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return x * below, below + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
