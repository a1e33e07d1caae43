"""Products with weights in fp32 on a CPU: oneDNN's in place of those of PyTorch's BLAS.

MKL, which PyTorch multiplies fp32 with, uses half the vector width of an AVX-512 CPU that is not
Intel's; oneDNN, which PyTorch has too, all of it: twice as fast (benchmarks/LOG.md). The results
differ by the order of summation. GPST_KERNELS=torch keeps PyTorch's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gpst.kernels.choice import requested

_LARGE = 1 << 26
"""Multiplications from which on a product pays for oneDNN's first look at its shape, 0.4 ms."""
STEP = 64
"""Products whose rows and inputs are multiples of this recur, so that the first look is shared."""


def product(
    x: Float[Tensor, "R I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None
) -> Float[Tensor, "R O"]:
    """x W^T + b, without a graph; either may be a transposed view."""
    if pays(x, weight):
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    return F.linear(x, weight, bias)


def add_product(total: Float[Tensor, "O I"], grad: Float[Tensor, "R O"], x: Tensor) -> None:
    """total += grad' x: the gradient of a weight. The total may be in higher precision."""
    if total.dtype != x.dtype:
        total += grad.T @ x
    elif pays(grad.T, x.T):
        total += product(grad.T, x.T)
    else:
        total.addmm_(grad.T, x)


def pays(x: Float[Tensor, "R I"], weight: Float[Tensor, "O I"]) -> bool:
    """Whether x W^T is one of oneDNN's products here."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or not _wanted():
        return False
    (rows, inputs), outputs = x.shape, len(weight)
    recurs = rows % STEP == 0 and inputs % STEP == 0
    return rows * inputs > 0 and (recurs or rows * inputs * outputs >= _LARGE)


def _wanted() -> bool:
    return requested() != "torch" and onednn_is_faster()


@functools.cache
def onednn_is_faster() -> bool:
    """oneDNN is built in, and the CPU is one for which it is the faster."""
    return (
        torch.backends.mkldnn.is_available() and "AVX512" in torch.backends.cpu.get_cpu_capability()
    )


def linear(
    x: Float[Tensor, "*batch I"], weight: Tensor, bias: Tensor | None, transposed: bool = False
) -> Float[Tensor, "*batch O"]:
    """x W^T + b by `product`, forward and backward, in fp32 on a CPU.

    The graph does not depend on how many rows there are: DeepSpeed's stage 2 adds up wrong
    gradients, silently, where ranks reach their parameters in different orders.

    Args:
        weight: (outputs, inputs), or (inputs, outputs) when `transposed`.
    """
    fits = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    if not fits or torch.is_autocast_enabled("cpu") or not torch.is_grad_enabled():
        return F.linear(x, weight.T if transposed else weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = _Linear.apply(rows, weight, bias, transposed)  # type: ignore[assignment]
    return out.view(*x.shape[:-1], out.shape[-1])


class Linear(nn.Linear):
    """A linear layer by `linear`."""

    def forward(self, input: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        return linear(input, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.with_bias, ctx.transposed = bias is not None, transposed
        return product(x, weight.T if transposed else weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        grad = grad_outputs[0].contiguous()  # of a sum it is one number, expanded
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = product(grad, weight if ctx.transposed else weight.T)
        if ctx.needs_input_grad[1]:
            grad_weight = product(x.T, grad.T) if ctx.transposed else product(grad.T, x.T)
        grad_bias = grad.sum(0) if ctx.with_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None
