"""Causal attention over packed queries, keys and values.

PyTorch's attention is used wherever it has a fused form. On a CPU it has none with dropout: it then
holds all T x T weights several times over and draws their mask slowly (4.5 times the time without
dropout at T = 2048, benchmarks/LOG.md). `_Blockwise` goes through blocks of queries instead, leaves
out the keys behind them, and keeps nothing but queries, keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpst.kernels.dropout import draw_seed, keep_mask

_QUERIES = 64
"""Queries at a time: with 12 heads and 2,048 keys their weights fill 6 MB."""


def causal_attention(
    packed: Float[Tensor, "B T 3 h d"], dropout: float = 0.0
) -> Float[Tensor, "B T h d"]:
    """softmax(q k' / sqrt(d)) v over each row's past and itself.

    Args:
        packed: queries, keys and values of h heads.
        dropout: rate at which weights are dropped.
    """
    if dropout > 0.0 and packed.device.type == "cpu":
        return _Blockwise.apply(packed, dropout)  # type: ignore[no-any-return]
    query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
    attended = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    return attended.transpose(1, 2)


def _blocks(length: int) -> Iterator[tuple[int, int, int]]:
    for number, first in enumerate(range(0, length, _QUERIES)):
        yield number, first, min(first + _QUERIES, length)


def _weights(query: Tensor, key: Tensor, first: int) -> Tensor:
    """(h, queries, keys) attention weights of the queries from place `first` on; at least fp32."""
    logits = torch.bmm(query * (1.0 / math.sqrt(query.shape[-1])), key.transpose(1, 2))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    size = query.shape[1]
    future = torch.ones(size, size, dtype=torch.bool).triu_(1)
    logits[:, :, first:].masked_fill_(future, -torch.inf)
    return torch.softmax(logits, -1)


def _mask_of(weights: Tensor, ctx: Any, block: int) -> Tensor:
    return keep_mask(ctx.dropout, ctx.seed + block, weights.shape, weights.dtype, weights.device)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, dropout: float) -> Tensor:
        batch, length, _, heads, dim = packed.shape
        ctx.save_for_backward(packed)
        ctx.dropout, ctx.seed = dropout, draw_seed()
        out = packed.new_empty(batch, length, heads, dim)
        for row in range(batch):
            query, key, value = packed[row].permute(1, 2, 0, 3)
            for number, first, last in _blocks(length):
                weights = _weights(query[:, first:last], key[:, :last], first)
                mask = _mask_of(weights, ctx, row * length + number)
                weights = weights.mul_(mask).to(packed.dtype)
                block = torch.bmm(weights, value[:, :last])
                out[row, first:last] = block.transpose(0, 1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad_out,) = grad_outputs
        (packed,) = ctx.saved_tensors
        batch, length, _, heads, dim = packed.shape
        grad = torch.empty_like(packed, memory_format=torch.contiguous_format)
        for row in range(batch):
            query, key, value = packed[row].permute(1, 2, 0, 3)
            grad_query = grad[row].permute(1, 2, 0, 3)[0]
            grad_key, grad_value = packed.new_zeros(2, heads, length, dim)
            for number, first, last in _blocks(length):
                q, k, v = query[:, first:last], key[:, :last], value[:, :last]
                g = grad_out[row, first:last].transpose(0, 1)
                weights = _weights(q, k, first)
                mask = _mask_of(weights, ctx, row * length + number)
                grad_weights = torch.bmm(g, v.transpose(1, 2)).to(weights.dtype)
                grad_logits = torch._softmax_backward_data(
                    grad_weights.mul_(mask), weights, -1, weights.dtype
                )
                grad_logits = grad_logits.mul_(1.0 / math.sqrt(dim)).to(packed.dtype)
                grad_query[:, first:last] = torch.bmm(grad_logits, k)
                grad_key[:, :last].baddbmm_(grad_logits.transpose(1, 2), q)
                weights = weights.mul_(mask).to(packed.dtype)
                grad_value[:, :last].baddbmm_(weights.transpose(1, 2), g)
            grad[row, :, 1] = grad_key.transpose(0, 1)
            grad[row, :, 2] = grad_value.transpose(0, 1)
        return grad, None
