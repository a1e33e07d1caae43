"""Models whose generative layers multiply in half precision, for search and for scoring texts.

Weights of the type layers, token layers and the token head are kept in half precision, and so is a
copy of the tied embedding. What lies between the products (residuals, norms, attention, keys and
values), the composition model and the head that chooses GEN or COMP stay in fp32, and so do
log-probabilities.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gpst.model import GPST
from gpst.search.vocabulary import keep_half

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class HalfLinear(nn.Linear):
    """A linear layer that multiplies in half precision; what goes in and out is fp32."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype):
        super().__init__(layer.in_features, layer.out_features, device="meta")
        self.weight = nn.Parameter(layer.weight.to(dtype), requires_grad=False)
        self.bias = nn.Parameter(layer.bias.to(dtype), requires_grad=False)

    def forward(self, input: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        return F.linear(input.to(self.weight.dtype), self.weight, self.bias).to(torch.float32)


@torch.no_grad()
def multiply_in(model: GPST, dtype: str) -> GPST:
    """Changes a model in place, so that its generative layers multiply in `dtype`.

    Args:
        dtype: fp32 (nothing is changed) or bf16.
    Raises:
        ValueError: another dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r} is not allowed; it must be {' or '.join(DTYPES)}")
    if dtype == "fp32":
        return model
    generator = model.generator
    for part in (generator.type_layers, generator.token_layers, generator.token_head):
        for module in list(part.modules()):
            for name, layer in list(module.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(module, name, HalfLinear(layer, DTYPES[dtype]))
    keep_half(model, DTYPES[dtype])
    return model
