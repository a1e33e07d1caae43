"""The pieces of a pair layer in numba: loops for one core of a CPU, in fp32 (see pair.py).

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

from gpst.jit.compiled import compiled
from gpst.kernels.cpu.gelu import gelu_

_compile = functools.partial(compiled, fastmath=True, error_model="numpy")
_ONE, _EPSILON = np.float32(1.0), np.float32(1e-5)


def pair_attention(
    packed: Tensor, num_heads: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    _, pairs, packed_dim = packed.shape
    width = packed_dim // (3 * num_heads)
    mixed = packed.new_empty(2, pairs, num_heads, width)
    weight = packed.new_empty(2, pairs, num_heads)
    by_head = _array(packed).reshape(2, pairs, 3 * num_heads, width)
    _attention(width)(by_head, _mask_array(mask, weight), mixed.numpy(), weight.numpy())
    return mixed.flatten(2), weight


def pair_attention_backward(
    gradient: Tensor, packed: Tensor, weight: Tensor, mask: Tensor | None = None
) -> Tensor:
    num_heads = weight.shape[-1]
    *shape, dim = gradient.shape
    width = dim // num_heads
    grad = gradient.new_empty(*shape, 3 * num_heads, width)
    by_head = _array(packed).reshape(*packed.shape[:2], 3 * num_heads, width)
    grad_mixed = _array(gradient).reshape(*shape, num_heads, width)
    masks = _mask_array(mask, weight)
    _attention_backward(width)(grad_mixed, by_head, weight.numpy(), masks, grad.numpy())
    return grad.flatten(-2)


def add_norm(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    normed = torch.empty_like(x, memory_format=torch.contiguous_format)
    inverse_std = x.new_empty(len(x), 1)
    _add_norm(_array(x), _array(y), normed.numpy(), inverse_std.numpy())
    return normed, inverse_std


def add_norm_backward(gradient: Tensor, normed: Tensor, inverse_std: Tensor) -> Tensor:
    grad = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    _add_norm_backward(_array(gradient), _array(normed), _array(inverse_std), grad.numpy())
    return grad


def gelu(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return x, gelu_(x, mask=mask)


def _array(x: Tensor) -> np.ndarray:
    return x.contiguous().numpy()


def _mask_array(mask: Tensor | None, weight: Tensor) -> np.ndarray:
    return _array(weight.new_ones(*weight.shape, 2) if mask is None else mask)


@functools.cache
def _attention(width: int) -> Callable[..., None]:
    scale = np.float32(1.0 / math.sqrt(width))

    @_compile
    def attention(packed: Any, mask: Any, mixed: Any, weight: Any) -> None:
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
                # on_i_j: the weight of query i on vector j after dropout.
                on_0_0, on_0_1 = weight_0 * mask[0, e, h, 0], (_ONE - weight_0) * mask[0, e, h, 1]
                on_1_0, on_1_1 = weight_1 * mask[1, e, h, 0], (_ONE - weight_1) * mask[1, e, h, 1]
                for j in range(width):
                    out_0[j] = on_0_0 * value_0[j] + on_0_1 * value_1[j]
                    out_1[j] = on_1_0 * value_0[j] + on_1_1 * value_1[j]

    return attention


@functools.cache
def _attention_backward(width: int) -> Callable[..., None]:
    scale = np.float32(1.0 / math.sqrt(width))

    @_compile
    def attention_backward(gradient: Any, packed: Any, weight: Any, mask: Any, grad: Any) -> None:
        routes, _, pairs, heads, _ = gradient.shape
        for r in range(routes):
            for e in range(pairs):
                for h in range(heads):
                    query_0, query_1 = packed[0, e, h], packed[1, e, h]
                    key_0, key_1 = packed[0, e, heads + h], packed[1, e, heads + h]
                    value_0, value_1 = packed[0, e, 2 * heads + h], packed[1, e, 2 * heads + h]
                    grad_out_0, grad_out_1 = gradient[r, 0, e, h], gradient[r, 1, e, h]
                    grad_query_0, grad_query_1 = grad[r, 0, e, h], grad[r, 1, e, h]
                    grad_key_0, grad_key_1 = grad[r, 0, e, heads + h], grad[r, 1, e, heads + h]
                    grad_value_0 = grad[r, 0, e, 2 * heads + h]
                    grad_value_1 = grad[r, 1, e, 2 * heads + h]
                    weight_0, weight_1 = weight[0, e, h], weight[1, e, h]
                    keep_0_0, keep_0_1 = mask[0, e, h, 0], mask[0, e, h, 1]
                    keep_1_0, keep_1_1 = mask[1, e, h, 0], mask[1, e, h, 1]
                    on_0_0, on_0_1 = weight_0 * keep_0_0, (_ONE - weight_0) * keep_0_1
                    on_1_0, on_1_1 = weight_1 * keep_1_0, (_ONE - weight_1) * keep_1_1
                    grad_logit_0 = grad_logit_1 = np.float32(0.0)
                    for j in range(width):
                        grad_logit_0 += grad_out_0[j] * (
                            keep_0_0 * value_0[j] - keep_0_1 * value_1[j]
                        )
                        grad_logit_1 += grad_out_1[j] * (
                            keep_1_0 * value_0[j] - keep_1_1 * value_1[j]
                        )
                    for j in range(width):
                        grad_value_0[j] = grad_out_0[j] * on_0_0 + grad_out_1[j] * on_1_0
                        grad_value_1[j] = grad_out_0[j] * on_0_1 + grad_out_1[j] * on_1_1
                    grad_logit_0 *= weight_0 * (_ONE - weight_0) * scale
                    grad_logit_1 *= weight_1 * (_ONE - weight_1) * scale
                    for j in range(width):
                        key = key_0[j] - key_1[j]
                        grad_query_0[j] = grad_logit_0 * key
                        grad_query_1[j] = grad_logit_1 * key
                        grad_key = grad_logit_0 * query_0[j] + grad_logit_1 * query_1[j]
                        grad_key_0[j] = grad_key
                        grad_key_1[j] = -grad_key

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
def _add_norm_backward(gradient: Any, normed: Any, inverse_std: Any, grad: Any) -> None:
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
                grad[r, m, j] = (gradient[r, m, j] - mean - normed[m, j] * along) * inverse
