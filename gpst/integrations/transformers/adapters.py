"""Adapters that cannot learn, or of which only a part would be seen."""

from __future__ import annotations

import warnings
from functools import cache

from torch import nn

from gpst.layers.composition import PairScore
from gpst.model.gpst import GPSTModel


def refuse_adapted(embedding: nn.Module) -> None:
    """
    Raises:
        ValueError: the embedding has an adapter of peft. The prediction head is the embedding's own
            weight and would not have it, until it is merged and changes the model.
    """
    if hasattr(embedding, "base_layer") and hasattr(embedding, "lora_A"):
        raise ValueError(
            "an adapter on gpst.embedding is not supported: the prediction heads are its weight, "
            "without the adapter; use modules_to_save=['gpst.embedding'] or trainable_token_indices"
        )


def warn_of_idle_adapters(model: GPSTModel) -> None:
    """Says which layers with adapters have no gradient: with window 1 every span has one split, so
    that scores of splits decide nothing.
    """
    if model.config.composition.window == 1:
        names = [
            f"{place}.{name}"
            for place, score in model.named_modules()
            if isinstance(score, PairScore)
            for name, layer in score.named_modules()
            if hasattr(layer, "base_layer")  # peft's, around a linear layer
        ]
        if names:
            _warn(", ".join(names))


@cache
def _warn(names: str) -> None:
    warnings.warn(
        f"these layers have adapters that learn nothing, as composition.window is 1 and there is "
        f"one split to choose from: {names}; leave them out with exclude_modules=r'.*score.*'",
        stacklevel=3,
    )
