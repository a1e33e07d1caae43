"""The pieces of a pair layer as loops for one core of a CPU, in fp32 (see pair.py).

Each goes over its rows once where PyTorch goes once an operation: on small models the passes over
memory and the calls cost as much as the matrix products. Widths of heads are constants of the
compiled loops, without which they are not vectorised.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpst.compiled import compiled

_compile = functools.partial(compiled, fastmath=True, error_model="numpy")
_ONE, _HALF, _EPSILON = np.float32(1.0), np.float32(0.5), np.float32(1e-5)

# exp: e^z = 2^n e^r, n the integer next to z / ln 2, e^r by its series to r^6, |r| <= ln(2) / 2.
_LOG2_E, _LN_2, _LEAST = np.float32(1 / math.log(2)), np.float32(math.log(2)), np.float32(-80.0)
_E2, _E3, _E4, _E5, _E6 = (np.float32(1 / math.factorial(k)) for k in range(2, 7))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)
# Abramowitz and Stegun 7.1.26: 1 - erf(y) within 1.5e-7; here y = |x| / sqrt(2).
_SLOPE_OF_T, _DENSITY = np.float32(0.3275911 / math.sqrt(2)), np.float32(1 / math.sqrt(2 * math.pi))
_A1, _A2, _A3 = np.float32(0.254829592), np.float32(-0.284496736), np.float32(1.421413741)
_A4, _A5 = np.float32(-1.453152027), np.float32(1.061405429)


def pair_attention(packed: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    _, pairs, packed_dim = packed.shape
    width = packed_dim // (3 * num_heads)
    mixed = packed.new_empty(2, pairs, num_heads, width)
    weight = packed.new_empty(2, pairs, num_heads)
    by_head = _array(packed).reshape(2, pairs, 3 * num_heads, width)
    _attention(width)(by_head, mixed.numpy(), weight.numpy())
    return mixed.flatten(2), weight


def pair_attention_backward(gradient: Tensor, packed: Tensor, weight: Tensor) -> Tensor:
    num_heads = weight.shape[-1]
    *shape, dim = gradient.shape
    width = dim // num_heads
    into = gradient.new_empty(*shape, 3 * num_heads, width)
    by_head = _array(packed).reshape(*packed.shape[:2], 3 * num_heads, width)
    from_mixed = _array(gradient).reshape(*shape, num_heads, width)
    _attention_backward(width)(from_mixed, by_head, weight.numpy(), into.numpy())
    return into.flatten(-2)


def add_norm(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    normed = torch.empty_like(x, memory_format=torch.contiguous_format)
    inverse_std = x.new_empty(len(x), 1)
    _add_norm(_array(x), _array(y), normed.numpy(), inverse_std.numpy())
    return normed, inverse_std


def add_norm_backward(gradient: Tensor, normed: Tensor, inverse_std: Tensor) -> Tensor:
    into = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    _add_norm_backward(_array(gradient), _array(normed), _array(inverse_std), into.numpy())
    return into


def gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Always with the slope."""
    value = torch.empty_like(x, memory_format=torch.contiguous_format)
    slope = torch.empty_like(value)
    _gelu(*(_array(t).reshape(-1) for t in (x, value, slope)))
    return value, slope


def _array(x: Tensor) -> np.ndarray:
    return x.contiguous().numpy()


@functools.cache
def _attention(width: int) -> Callable[..., None]:
    scale = np.float32(1.0 / math.sqrt(width))

    @_compile
    def attention(packed: Any, mixed: Any, weight: Any) -> None:
        _, pairs, heads, _ = mixed.shape
        for e in range(pairs):
            for h in range(heads):
                query_0, query_1 = packed[0, e, h], packed[1, e, h]
                key_0, key_1 = packed[0, e, heads + h], packed[1, e, heads + h]
                value_0, value_1 = packed[0, e, 2 * heads + h], packed[1, e, 2 * heads + h]
                out_0, out_1 = mixed[0, e, h], mixed[1, e, h]
                logit_0 = logit_1 = np.float32(0.0)
                for j in range(width):
                    key = key_0[j] - key_1[j]
                    logit_0 += query_0[j] * key
                    logit_1 += query_1[j] * key
                weight_0 = _ONE / (_ONE + np.float32(math.exp(-logit_0 * scale)))
                weight_1 = _ONE / (_ONE + np.float32(math.exp(-logit_1 * scale)))
                weight[0, e, h], weight[1, e, h] = weight_0, weight_1
                for j in range(width):
                    base = value_1[j]
                    value = value_0[j] - base
                    out_0[j] = base + weight_0 * value
                    out_1[j] = base + weight_1 * value

    return attention


@functools.cache
def _attention_backward(width: int) -> Callable[..., None]:
    scale = np.float32(1.0 / math.sqrt(width))

    @_compile
    def attention_backward(gradient: Any, packed: Any, weight: Any, into: Any) -> None:
        routes, _, pairs, heads, _ = gradient.shape
        for r in range(routes):
            for e in range(pairs):
                for h in range(heads):
                    query_0, query_1 = packed[0, e, h], packed[1, e, h]
                    key_0, key_1 = packed[0, e, heads + h], packed[1, e, heads + h]
                    value_0, value_1 = packed[0, e, 2 * heads + h], packed[1, e, 2 * heads + h]
                    from_0, from_1 = gradient[r, 0, e, h], gradient[r, 1, e, h]
                    to_query_0, to_query_1 = into[r, 0, e, h], into[r, 1, e, h]
                    to_key_0, to_key_1 = into[r, 0, e, heads + h], into[r, 1, e, heads + h]
                    to_value_0 = into[r, 0, e, 2 * heads + h]
                    to_value_1 = into[r, 1, e, 2 * heads + h]
                    weight_0, weight_1 = weight[0, e, h], weight[1, e, h]
                    slope_0 = slope_1 = np.float32(0.0)
                    for j in range(width):
                        value = value_0[j] - value_1[j]
                        slope_0 += from_0[j] * value
                        slope_1 += from_1[j] * value
                    for j in range(width):
                        own = from_0[j] * weight_0 + from_1[j] * weight_1
                        to_value_0[j] = own
                        to_value_1[j] = from_0[j] + from_1[j] - own
                    slope_0 *= weight_0 * (_ONE - weight_0) * scale
                    slope_1 *= weight_1 * (_ONE - weight_1) * scale
                    for j in range(width):
                        key = key_0[j] - key_1[j]
                        to_query_0[j] = slope_0 * key
                        to_query_1[j] = slope_1 * key
                        to_key = slope_0 * query_0[j] + slope_1 * query_1[j]
                        to_key_0[j] = to_key
                        to_key_1[j] = -to_key

    return attention_backward


@_compile
def _add_norm(x: Any, y: Any, normed: Any, inverse_std: Any) -> None:
    rows, dim = x.shape
    share = np.float32(1.0 / dim)
    for m in range(rows):
        mean = np.float32(0.0)
        for j in range(dim):
            total = x[m, j] + y[m, j]
            normed[m, j] = total
            mean += total
        mean *= share
        variance = np.float32(0.0)
        for j in range(dim):
            distance = normed[m, j] - mean
            variance += distance * distance
        inverse = _ONE / np.float32(math.sqrt(variance * share + _EPSILON))
        inverse_std[m, 0] = inverse
        for j in range(dim):
            normed[m, j] = (normed[m, j] - mean) * inverse


@_compile
def _add_norm_backward(gradient: Any, normed: Any, inverse_std: Any, into: Any) -> None:
    routes, rows, dim = gradient.shape
    share = np.float32(1.0 / dim)
    for r in range(routes):
        for m in range(rows):
            mean = along = np.float32(0.0)
            for j in range(dim):
                mean += gradient[r, m, j]
                along += gradient[r, m, j] * normed[m, j]
            mean *= share
            along *= share
            inverse = inverse_std[m, 0]
            for j in range(dim):
                into[r, m, j] = (gradient[r, m, j] - mean - normed[m, j] * along) * inverse


@_compile
def _gelu(x: Any, value: Any, slope: Any) -> None:
    # Own exponential: a call of the library's would keep the loop from being vectorised.
    for i in range(x.size):
        v = x[i]
        z = max(-_HALF * v * v, _LEAST)
        n = np.int32(z * _LOG2_E - _HALF)
        r = z - np.float32(n) * _LN_2
        power = _ONE + r * (_ONE + r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * _E6)))))
        exponential = power * np.int32((n + _BIAS) << _MANTISSA).view(np.float32)
        t = _ONE / (_ONE + _SLOPE_OF_T * abs(v))
        beyond = _HALF * exponential * t * (_A1 + t * (_A2 + t * (_A3 + t * (_A4 + t * _A5))))
        below = beyond if v < np.float32(0.0) else _ONE - beyond
        value[i] = v * below
        slope[i] = below + v * exponential * _DENSITY
