"""The pieces of gpst/kernels/pair.py in Triton: one kernel each, a program to a few rows."""

# Kernels take plain numbers for constexpr parameters.
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_PAIRS = 16
"""Pairs a program of the attention kernels."""
# Numbers of rows are not specialised: Triton would make a constant of 1 and compile twice for
# multiples of 16.


@triton.jit(do_not_specialize=["num_pairs"])
def _attention(packed, mask, mixed, weight, num_pairs, scale, H: tl.constexpr, W: tl.constexpr,
               WIDTH: tl.constexpr, PAIRS: tl.constexpr, DROPS: tl.constexpr):  # fmt: skip
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    head = tl.program_id(1)
    column = tl.arange(0, WIDTH)
    inside = (pair < num_pairs)[:, None] & (column < W)[None, :]
    dim = H * W
    at = pair.to(tl.int64)[:, None] * (3 * dim) + (head * W + column)[None, :]
    second = num_pairs.to(tl.int64) * (3 * dim)
    k0 = tl.load(packed + at + dim, inside, 0.0).to(tl.float32)
    k1 = tl.load(packed + at + second + dim, inside, 0.0).to(tl.float32)
    v0 = tl.load(packed + at + 2 * dim, inside, 0.0).to(tl.float32)
    v1 = tl.load(packed + at + second + 2 * dim, inside, 0.0).to(tl.float32)
    out = pair.to(tl.int64)[:, None] * dim + (head * W + column)[None, :]
    for vector in tl.static_range(2):
        q = tl.load(packed + at + vector * second, inside, 0.0).to(tl.float32)
        on_first = 1.0 / (1.0 + tl.exp(-tl.sum(q * (k0 - k1), 1) * scale))
        row = (pair.to(tl.int64) + vector * num_pairs) * H + head
        tl.store(weight + row, on_first, pair < num_pairs)
        on_second = 1.0 - on_first
        if DROPS:
            on_first *= tl.load(mask + 2 * row, pair < num_pairs, 0.0).to(tl.float32)
            on_second *= tl.load(mask + 2 * row + 1, pair < num_pairs, 0.0).to(tl.float32)
        value = on_first[:, None] * v0 + on_second[:, None] * v1
        tl.store(mixed + out + vector * num_pairs.to(tl.int64) * dim, value, inside)


def pair_attention(
    packed: Tensor, num_heads: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As pair.pair_attention."""
    _, num_pairs, triple = packed.shape
    width = triple // 3 // num_heads
    mixed = packed.new_empty(2, num_pairs, triple // 3)
    weight = packed.new_empty(2, num_pairs, num_heads)
    grid = (triton.cdiv(num_pairs, _PAIRS), num_heads)
    _attention[grid](
        packed, weight if mask is None else mask, mixed, weight, num_pairs,
        1.0 / math.sqrt(width), num_heads, width, triton.next_power_of_2(width), _PAIRS,
        mask is not None,
    )  # fmt: skip
    return mixed, weight


@triton.jit(do_not_specialize=["num_pairs"])
def _attention_backward(gradient, packed, weight, mask, grad, num_pairs, scale, H: tl.constexpr,
                        W: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr,
                        DROPS: tl.constexpr):  # fmt: skip
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    head, route = tl.program_id(1), tl.program_id(2)
    column = tl.arange(0, WIDTH)
    inside = (pair < num_pairs)[:, None] & (column < W)[None, :]
    dim = H * W
    pairs = num_pairs.to(tl.int64)
    at = pair.to(tl.int64)[:, None] * (3 * dim) + (head * W + column)[None, :]
    second = pairs * (3 * dim)
    q0 = tl.load(packed + at, inside, 0.0).to(tl.float32)
    q1 = tl.load(packed + at + second, inside, 0.0).to(tl.float32)
    k0 = tl.load(packed + at + dim, inside, 0.0).to(tl.float32)
    k1 = tl.load(packed + at + second + dim, inside, 0.0).to(tl.float32)
    v0 = tl.load(packed + at + 2 * dim, inside, 0.0).to(tl.float32)
    v1 = tl.load(packed + at + second + 2 * dim, inside, 0.0).to(tl.float32)
    a = route * 2 * pairs * dim + pair.to(tl.int64)[:, None] * dim + (head * W + column)[None, :]
    g0 = tl.load(gradient + a, inside, 0.0).to(tl.float32)
    g1 = tl.load(gradient + a + pairs * dim, inside, 0.0).to(tl.float32)
    row0 = pair.to(tl.int64) * H + head
    row1 = (pair.to(tl.int64) + pairs) * H + head
    w0 = tl.load(weight + row0, pair < num_pairs, 0.0).to(tl.float32)
    w1 = tl.load(weight + row1, pair < num_pairs, 0.0).to(tl.float32)
    along00, along01 = tl.sum(g0 * v0, 1), tl.sum(g0 * v1, 1)
    along10, along11 = tl.sum(g1 * v0, 1), tl.sum(g1 * v1, 1)
    # Of query i: on_i_j is the weight on vector j after dropout.
    on00, on01, on10, on11 = w0, 1.0 - w0, w1, 1.0 - w1
    if DROPS:
        m00 = tl.load(mask + 2 * row0, pair < num_pairs, 0.0).to(tl.float32)
        m01 = tl.load(mask + 2 * row0 + 1, pair < num_pairs, 0.0).to(tl.float32)
        m10 = tl.load(mask + 2 * row1, pair < num_pairs, 0.0).to(tl.float32)
        m11 = tl.load(mask + 2 * row1 + 1, pair < num_pairs, 0.0).to(tl.float32)
        along00, along01, along10, along11 = (
            along00 * m00,
            along01 * m01,
            along10 * m10,
            along11 * m11,
        )
        on00, on01, on10, on11 = on00 * m00, on01 * m01, on10 * m10, on11 * m11
    l0 = ((along00 - along01) * w0 * (1.0 - w0) * scale)[:, None]
    l1 = ((along10 - along11) * w1 * (1.0 - w1) * scale)[:, None]
    grad_k0 = l0 * q0 + l1 * q1
    to = grad + route * 2 * second + at
    tl.store(to, l0 * (k0 - k1), inside)
    tl.store(to + second, l1 * (k0 - k1), inside)
    tl.store(to + dim, grad_k0, inside)
    tl.store(to + second + dim, -grad_k0, inside)
    tl.store(to + 2 * dim, g0 * on00[:, None] + g1 * on10[:, None], inside)
    tl.store(to + second + 2 * dim, g0 * on01[:, None] + g1 * on11[:, None], inside)


def pair_attention_backward(
    gradient: Tensor, packed: Tensor, weight: Tensor, mask: Tensor | None = None
) -> Tensor:
    """As pair.pair_attention_backward."""
    routes, _, num_pairs, dim = gradient.shape
    num_heads = weight.shape[-1]
    width = dim // num_heads
    grad = gradient.new_empty(routes, 2, num_pairs, 3 * dim)
    grid = (triton.cdiv(num_pairs, _PAIRS), num_heads, routes)
    _attention_backward[grid](
        gradient.contiguous(), packed, weight, weight if mask is None else mask, grad, num_pairs,
        1.0 / math.sqrt(width), num_heads, width, triton.next_power_of_2(width), _PAIRS,
        mask is not None,
    )  # fmt: skip
    return grad


@triton.jit
def _add_norm(x, y, normed, inverse_std, D: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < D
    at = row * D + column
    total = tl.load(x + at, inside, 0.0).to(tl.float32) + tl.load(y + at, inside, 0.0)
    mean = tl.sum(total, 0) / D
    centred = tl.where(inside, total - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / D + 1e-5)
    tl.store(normed + at, centred * inverse, inside)
    tl.store(inverse_std + row, inverse)


def add_norm(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """As pair.add_norm, but leaves y as it is."""
    rows, dim = x.shape
    normed = torch.empty_like(x, memory_format=torch.contiguous_format)
    inverse_std = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    if rows:
        _add_norm[(rows,)](
            x.contiguous(), y.contiguous(), normed, inverse_std, dim, triton.next_power_of_2(dim)
        )
    return normed, inverse_std


@triton.jit(do_not_specialize=["num_rows"])
def _add_norm_backward(
    gradient, normed, inverse_std, grad, num_rows, D: tl.constexpr, WIDTH: tl.constexpr
):
    row, route = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < D
    g = tl.load(gradient + (route * num_rows + row) * D + column, inside, 0.0).to(tl.float32)
    n = tl.load(normed + row * D + column, inside, 0.0).to(tl.float32)
    inverse = tl.load(inverse_std + row).to(tl.float32)
    grad_x = inverse * (g - tl.sum(g, 0) / D - n * (tl.sum(g * n, 0) / D))
    tl.store(grad + (route * num_rows + row) * D + column, grad_x, inside)


def add_norm_backward(gradient: Tensor, normed: Tensor, inverse_std: Tensor) -> Tensor:
    """As pair.add_norm_backward."""
    routes, rows, dim = gradient.shape
    grad = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    if rows:
        _add_norm_backward[(rows, routes)](
            gradient.contiguous(), normed.contiguous(), inverse_std, grad, rows, dim,
            triton.next_power_of_2(dim),
        )  # fmt: skip
    return grad


@triton.jit(do_not_specialize=["size"])
def _gelu(x, mask, value, slope, size, BLOCK: tl.constexpr, DROPS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    v = tl.load(x + at, inside, 0.0).to(tl.float32)
    below = 0.5 * (1.0 + tl.erf(v * 0.7071067811865476))
    grad_value = v * below
    grad_slope = below + v * tl.exp(-0.5 * v * v) * 0.3989422804014327
    if DROPS:
        keep = tl.load(mask + at, inside, 0.0).to(tl.float32)
        grad_value, grad_slope = grad_value * keep, grad_slope * keep
    tl.store(value + at, grad_value, inside)
    tl.store(slope + at, grad_slope, inside)


def gelu(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As pair.gelu, always with the slope."""
    x, size = x.contiguous(), x.numel()
    value, slope = torch.empty_like(x), torch.empty_like(x)
    if size:
        _gelu[(triton.cdiv(size, 1024),)](
            x, x if mask is None else mask, value, slope, size, 1024, mask is not None
        )
    return value, slope
