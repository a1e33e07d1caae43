"""What PyTorch's operations launch on a GPU, and the bytes and arithmetic of each.

An operation that is not listed is one kernel that reads its inputs and writes its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from forecast.gpus import Cost, filled

LAUNCHES = {
    "cumsum": 2,  # the scan's state is set first
    "logsumexp": 5,
    "native_layer_norm_backward": 2,
    "_fused_rms_norm_backward": 2,
    "embedding_dense_backward": 8,  # sorts the ids
    "index_put": 2,
    "_index_put_impl_": 8,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2,
    "_flash_attention_backward": 3,
    "_efficient_attention_backward": 2,
    "_varlen_attn_backward": 3,
    "linalg_vector_norm": 2,
    "sort": 6,
    "nonzero": 4,
    "scatter_reduce_": 1,
    "new_ones": 1,
}
"""Kernels of operations that are more than one (PyTorch's sources, ATen/native/cuda)."""
FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh",
    "set_", "resize_", "_unsafe_view", "_reshape_alias", "sym_size", "is_pinned", "detach",
}  # fmt: skip
"""Operations without a kernel, besides views."""
ROWS_ONLY = {"index_select", "embedding", "gather", "index"}
"""They read of their first input as much as they give."""
ROWS_ADDED = {"index_add_", "index_copy_", "scatter_add_", "scatter_", "index_put_"}
"""They read and write of it as much as they are given."""
WRITTEN = {"zero_", "fill_", "bernoulli_", "exponential_", "random_", "uniform_", "normal_",
           "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros",
           "new_ones", "new_full", "arange", "eye"}  # fmt: skip
"""They read nothing."""
ATTENTION = ("_scaled_dot_product_", "_flash_attention", "_efficient_attention", "_varlen_attn")
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "repeat_interleave", "unique",
         "_unique2", "equal", "is_nonzero", "unique_consecutive", "nonzero_static"}  # fmt: skip
"""The host waits for their result."""


def size_bytes(tensor: Tensor) -> int:
    """Of what a tensor shows; expanded axes count once."""
    numel = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= size if stride else 1
    return numel * tensor.element_size()


def tensors_in(values: Any) -> list[Tensor]:
    """All tensors in arguments or results."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    if isinstance(values, (list, tuple, type({}.values()))):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []


def cost_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> Cost:
    """Of an aten operation, from its arguments and its result."""
    name = func._schema.name.split("::")[1]
    returns = func._schema.returns
    is_view = bool(returns) and returns[0].alias_info and not returns[0].alias_info.is_write
    if name in FREE or is_view:
        return Cost(0)
    launches = LAUNCHES.get(name, 1)
    inputs, outputs = tensors_in((args, kwargs)), tensors_in(out)
    if not any(tensor.numel() for tensor in outputs) and outputs:
        return Cost(0)
    traffic = _bytes(name, args, inputs, outputs)
    packet = func._overloadpacket
    if packet in flop_registry:
        flops = float(flop_registry[packet](*args, **kwargs, out_val=out))
        if name.startswith(ATTENTION):
            causal = any(value is True for value in args)
            return Cost(launches, traffic, flops * (0.5 if causal else 1.0), "attention")
        return product_cost(launches, traffic, flops, args, out)
    # A few instructions a number: exponentials are the dearest.
    numbers = max((tensor.numel() for tensor in outputs + inputs), default=0)
    return Cost(launches, traffic, 10.0 * numbers)


def product_cost(
    launches: int, traffic: float, flops: float, args: Sequence[Any], out: Any
) -> Cost:
    """Of a matrix product, by how well its tiles of 128 x 128 fill a GPU; long sums are split."""
    first = tensors_in(out)[0]
    rows, columns = first.shape[-2:]
    batch = first.numel() // max(rows * columns, 1)
    inner = flops / max(2.0 * first.numel(), 1.0)
    parts = max(1.0, inner // 1024)
    tiles = batch * -(-rows // 128) * -(-columns // 128)
    split = parts if tiles < 108 else 1.0
    half = all(tensor.element_size() <= 2 for tensor in tensors_in(args)[-2:])
    kind = "product" if half else "plain"
    return Cost(launches, traffic, flops, kind, fill=max(filled(tiles * split), 1e-3))


def _bytes(name: str, args: Sequence[Any], inputs: list[Tensor], outputs: list[Tensor]) -> float:
    written = sum(map(size_bytes, outputs))
    if name in WRITTEN:
        return written
    if name in ROWS_ONLY:
        return 2 * written + sum(map(size_bytes, inputs[1:]))
    if name in ROWS_ADDED:
        source = inputs[-1]
        return 3 * size_bytes(source) + sum(map(size_bytes, inputs[1:-1]))
    return written + sum(map(size_bytes, inputs))


def waits(func: Any, args: Sequence[Any]) -> bool:
    """Whether the host waits for the GPU in this operation."""
    name = func._schema.name.split("::")[1]
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = [index for index in args[1] if isinstance(index, Tensor)]
        return any(index.dtype in (torch.bool, torch.uint8) for index in indices)
    return name in WAITS
