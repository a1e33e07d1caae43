"""Adapters that cannot learn."""

from __future__ import annotations

import warnings
from functools import cache

from gpst.layers.composition import PairScore
from gpst.model.gpst import GPSTModel


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
