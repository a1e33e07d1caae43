"""log p of given tokens: tiles of the vocabulary, of which no more than a running sum is kept."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.kernels.packed_linear import Product
from gpst.layers.transformer import at_least_fp32
from gpst.model.gpst import GPSTModel

_TILE = 4096
"""Tokens at a time: the logits of 250 rows stay in the processor's cache."""
_FIRST_TILE = 1024
"""Fewer at first: they are frequent ones where ids go by frequency, and hold much of the mass."""
_GPU_TILE = 1 << 18
_LOGITS = 1 << 26
"""Held at a time: rows of a GPU's whole vocabulary are many."""
_TABLE, _PRODUCTS = "search_vocabulary", "search_products"


def keep_vocabulary(model: GPSTModel, dtype: torch.dtype | None) -> None:
    """The model gets its tied embedding in another precision, and packed tiles of it on a CPU."""
    weight = model.embedding.weight
    if dtype is not None and weight.dtype != dtype:
        model.register_buffer(_TABLE, weight.detach().to(dtype), persistent=False)
    object.__setattr__(model, _PRODUCTS, [Product() for _ in _sizes(len(weight))])


def _sizes(vocab_size: int) -> list[int]:
    """Of the tiles on a CPU: a small one, the rest of a whole one, whole ones and the rest."""
    ends = [min(_FIRST_TILE, vocab_size), *range(_TILE, vocab_size, _TILE), vocab_size]
    return [b - a for a, b in pairwise([0, *ends]) if b > a]


def numbers(scores: Tensor) -> Tensor:
    """The scores; of what is no number there is no best, and a search would not end.

    Raises:
        ValueError: one is not a number.
    """
    if bool(scores.isnan().any()):
        raise ValueError(
            "the model's scores are not numbers (nan): its weights have diverged, or are too large "
            "for this precision"
        )
    return scores


class Vocabulary:
    """The tied embedding as what features are multiplied with."""

    def __init__(self, model: GPSTModel):
        self.weight = model.embedding.weight
        self.table: Tensor = getattr(model, _TABLE, self.weight)
        on_cpu = self.table.device.type == "cpu"
        self.parts = self.table.split(_sizes(len(self.table)) if on_cpu else _GPU_TILE)
        products: list[Product] = getattr(model, _PRODUCTS, [])
        self.products = products if on_cpu and products else [None] * len(self.parts)

    def log_sum(self, part: int, inputs: Float[Tensor, "R H"]) -> Float[Tensor, "R"]:
        """Log of the sum over a part's tokens of exp of the logits, float64."""
        product, weight = self.products[part], self.parts[part]
        sums = []
        for rows in inputs.split(max(1, _LOGITS // len(weight))):
            logits = F.linear(rows, weight) if product is None else product(rows, weight, None)
            sums.append(at_least_fp32(logits).logsumexp(1).to(torch.float64))
        return numbers(torch.cat(sums))

    @cached_property
    def means(self) -> Float[Tensor, "rest H"]:
        """The mean embedding of each part but the first."""
        return torch.stack([at_least_fp32(part).mean(0) for part in self.parts[1:]])

    @cached_property
    def log_sizes(self) -> Float[Tensor, "rest"]:
        """Log of the number of tokens of each part but the first."""
        sizes = [math.log(len(part)) for part in self.parts[1:]]
        return torch.tensor(sizes, dtype=torch.float64, device=self.table.device)


class TokenScores:
    """log softmax(features E^T) at one token a row: bounds of all rows, exact ones where asked.

    The token's own logit is computed by itself, in the features' precision. The sum over the first
    part of the vocabulary is exact; that over another is at least its size times exp of its mean
    logit (Jensen), which one product with the part's mean embedding gives.
    """

    def __init__(
        self, vocabulary: Vocabulary, features: Float[Tensor, "M H"], tokens: Int64[Tensor, "M"]
    ):
        self._vocabulary = vocabulary
        own = vocabulary.weight.index_select(0, tokens)
        self._own = (features * own).sum(1).to(torch.float64)
        self._inputs = features.to(vocabulary.table.dtype)
        self._first = vocabulary.log_sum(0, self._inputs)
        least = self._first
        if len(vocabulary.parts) > 1:
            logits = (at_least_fp32(features) @ vocabulary.means.T).to(torch.float64)
            rest = (logits + vocabulary.log_sizes).logsumexp(1)
            # Sums are rounded: half precision's by more.
            slack = 1e-4 if self._inputs.dtype == features.dtype else 0.1
            least = torch.logaddexp(self._first, rest) - slack
        self.upper: Float[Tensor, "M"] = (self._own - least).clamp_max(0.0)
        """What no row's log p exceeds, float64."""

    def exact(self, rows: Int64[Tensor, "R"]) -> Float[Tensor, "R"]:
        """log p of some rows, float64."""
        inputs = self._inputs.index_select(0, rows)
        total = self._first.index_select(0, rows)
        if len(rows):
            for part in range(1, len(self._vocabulary.parts)):
                total = torch.logaddexp(total, self._vocabulary.log_sum(part, inputs))
        return (self._own.index_select(0, rows) - total).clamp_max(0.0)
