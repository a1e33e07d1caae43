"""Linear layers whose weights are kept a second time, in the order a CPU multiplies them fastest.

The library behind a plain linear layer takes the weights as they lie or brings them into its own
order again with every product; for the few rows of a search that order is worth having once. The
results differ from the plain ones by the order of summation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gpst.kernels.product import onednn_is_faster

_ROWS = 64
"""Rows that the order is chosen for; it serves any number."""
_STEP = 32
"""Products have a multiple of so many rows: a first one of its size costs a millisecond."""
_LEAST = 1 << 18
"""Weights of a matrix from which on it pays."""


class Product:
    """x W^T + b in the weights' precision, by packed weights where that is possible."""

    def __init__(self) -> None:
        self._packed: Tensor | None = None
        self._of: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies pack by themselves."""
        return {"_packed": None, "_of": None}

    def __call__(
        self, x: Float[Tensor, "R I"], weight: Float[Tensor, "O I"], bias: Tensor | None
    ) -> Float[Tensor, "R O"]:
        if len(x) == 0 or not packable(weight):
            return F.linear(x, weight, bias)
        # Weights that have changed since, or are others, are packed anew.
        now = (weight.data_ptr(), weight._version)
        if self._packed is None or self._of != now:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
            self._of = now
        whole = F.pad(x, (0, 0, 0, -len(x) % _STEP))
        out = torch.ops.mkldnn._linear_pointwise(whole, self._packed, bias, "none", [], "")
        return out[: len(x)]


def packable(weight: Tensor) -> bool:
    """Whether products with these weights are packed ones: large, on a CPU, without gradients.

    Without AVX-512 oneDNN packs no bf16, and gains nothing in fp32 (benchmarks/LOG.md).
    """
    return (
        weight.numel() >= _LEAST
        and weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and onednn_is_faster()
        and not torch.is_grad_enabled()
        and not weight.is_inference()
    )


class PackedLinear(nn.Linear):
    """A linear layer that multiplies in `dtype`; what goes in and out keeps its own.

    Args:
        layer: its parameters are taken over, in `dtype`.
        dtype: the layer's own by default.
    """

    def __init__(self, layer: nn.Linear, dtype: torch.dtype | None = None):
        super().__init__(layer.in_features, layer.out_features, device="meta")
        self.weight, self.bias = (
            p
            if dtype is None or p.dtype == dtype
            else nn.Parameter(p.detach().to(dtype), requires_grad=False)
            for p in (layer.weight, layer.bias)
        )
        self._product = Product()

    def forward(self, input: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        rows = input.to(self.weight.dtype).reshape(-1, self.in_features)
        out = self._product(rows, self.weight, self.bias)
        return out.to(input.dtype).view(*input.shape[:-1], self.out_features)
