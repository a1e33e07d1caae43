"""What a model gives back from a batch, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from gpst.batch import ContextBatch
from gpst.model.losses import LossTerm


@dataclass(frozen=True)
class ModelOutput:
    """What a training or evaluation step reads off a model."""

    losses: dict[str, LossTerm]
    """By the names in the model's LOSSES: sums with gradient, fp32; their means add up to the
    loss."""
    statistics: dict[str, LossTerm]
    """By the names in its STATISTICS: sums without gradient that describe the trees."""
    features: Float[Tensor, "N H"]
    """What each token was predicted from (before the tied embedding), with gradient."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Of the batch's chart: "cells", "edges", "edges_over_tokens" (those of the first level, whose
    children are both tokens), "levels"; from them follows the arithmetic done."""


def check_context_length(batch: ContextBatch, limit: int) -> None:
    """Raises ValueError where a context is longer than the model's max_context_tokens."""
    longest = int(batch.context_lengths.max())
    if longest > limit:
        raise ValueError(
            f"a context has {longest} tokens, but the model takes {limit} (max_context_tokens)"
        )
