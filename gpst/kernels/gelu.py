"""GELU with a graph: PyTorch's, or one compiled loop for the value and its slope."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpst.kernels.choice import use_numba


def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x Phi(x), exactly or as GPT-2 has it; keeps its slope for the way back in place of x."""
    if torch.is_grad_enabled() and x.requires_grad and use_numba(x):
        return _Gelu.apply(x, approximate == "tanh")  # type: ignore[no-any-return]
    return F.gelu(x, approximate=approximate)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tanh: bool) -> Tensor:
        from gpst.kernels.cpu import gelu

        value = x.clone(memory_format=torch.contiguous_format)
        slope = gelu.gelu_(value, tanh)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (slope,) = ctx.saved_tensors
        return grad_outputs[0] * slope, None
