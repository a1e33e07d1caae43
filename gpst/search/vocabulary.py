"""log p of given tokens: tiles of the vocabulary, of which no more than a running sum is kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.layers import at_least_fp32
from gpst.model import GPST
from gpst.search.packed import Product

_TILE = 4096
"""Tokens at a time: the logits of 250 rows stay in the processor's cache."""
_FIRST_TILE = 1024
"""Fewer at first: they are frequent ones where ids go by frequency, and bound the others' share."""
_GPU_LOGITS = 1 << 26
_TABLE, _PRODUCTS = "search_vocabulary", "search_products"


def keep_vocabulary(model: GPST, dtype: torch.dtype | None) -> None:
    """The model gets its tied embedding in another precision, and packed tiles of it on a CPU."""
    weight = model.embedding.weight
    if dtype is not None and weight.dtype != dtype:
        model.register_buffer(_TABLE, weight.detach().to(dtype), persistent=False)
    object.__setattr__(model, _PRODUCTS, [Product() for _ in _sizes(len(weight))])


def _sizes(vocab_size: int) -> list[int]:
    """Of the tiles on a CPU: a small one, the rest of a whole one, whole ones and the rest."""
    ends = [min(_FIRST_TILE, vocab_size), *range(_TILE, vocab_size, _TILE), vocab_size]
    return [b - a for a, b in pairwise([0, *ends]) if b > a]


def _logits(model: GPST, table: Tensor, num_rows: int) -> Iterator[tuple[Tensor, Product | None]]:
    """Tiles of the table, with their packed products if the model has them."""
    if table.device.type != "cpu":
        for part in table.split(max(1, _GPU_LOGITS // max(1, num_rows))):
            yield part, None
        return
    parts = table.split(_sizes(len(table)))
    products: list[Product | None] = getattr(model, _PRODUCTS, [None] * len(parts))
    yield from zip(parts, products, strict=True)


def log_p_of(
    model: GPST,
    features: Float[Tensor, "M H"],
    tokens: Int64[Tensor, "M"],
    least: Float[Tensor, "M"] | None = None,
) -> Float[Tensor, "M"]:
    """log softmax(features E^T) at one token a row, float64.

    The token's own logit is computed by itself, in the features' precision.

    Args:
        least: a row may give minus infinity where its log p is below this. The sum over the tiles
            so far bounds a row's log p from above, and rows that fall below leave the product.
    """
    weight = model.embedding.weight
    own = (features * weight.index_select(0, tokens)).sum(1).to(torch.float64)
    table: Tensor = getattr(model, _TABLE, weight)
    inputs = features.to(table.dtype)
    found = torch.full_like(own, -torch.inf)
    rows = torch.arange(len(own), device=own.device)
    total = torch.full_like(own, -torch.inf)
    for part, product in _logits(model, table, len(own)):
        logits = F.linear(inputs, part) if product is None else product(inputs, part, None)
        total = torch.logaddexp(total, at_least_fp32(logits).logsumexp(1).to(total.dtype))
        if least is None:
            continue
        still = (own - total >= least).nonzero().squeeze(1)
        if len(still) == 0:
            return found
        if len(still) < len(rows):
            rows, own, total, least, inputs = (
                values.index_select(0, still) for values in (rows, own, total, least, inputs)
            )
    return found.index_copy_(0, rows, (own - total).clamp_max(0.0))
