"""Models prepared for search and for scoring texts, in fp32 or with products in half precision.

On a CPU the layers' weights are packed (gpst/kernels/packed_linear.py). In half precision the
weights of the type layers, token layers and the token head are kept in it, and so is a copy of
the tied embedding. What lies between the products (residuals, norms, attention, keys and values),
the composition model and the head that chooses GEN or COMP stay in fp32, and so do
log-probabilities.
"""

from __future__ import annotations

import torch
from torch import nn

from gpst.kernels.packed_linear import PackedLinear
from gpst.model.gpst import GPSTModel
from gpst.search.vocabulary import keep_vocabulary

DTYPES = {"fp32": None, "bf16": torch.bfloat16}
"""Precision of the products; None: that of the weights."""


@torch.no_grad()
def multiply_in(model: GPSTModel, dtype: str) -> GPSTModel:
    """Changes a model in place, so that its generative layers multiply in `dtype`.

    Args:
        dtype: fp32 (nothing is changed but the order of sums) or bf16.
    Raises:
        ValueError: another dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r} is not allowed; it must be {' or '.join(DTYPES)}")
    generator = model.generator
    for part in (generator.type_layers, generator.token_layers, generator.token_head):
        _pack(part, DTYPES[dtype])
    keep_vocabulary(model, DTYPES[dtype])
    return model


def _pack(part: nn.Module, dtype: torch.dtype | None) -> None:
    for module in list(part.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(module, name, PackedLinear(layer, dtype))
