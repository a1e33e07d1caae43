"""Exports from before phi_beta had a map for either sibling: names then and now.

The one map of the siblings then is the left one's and the right one's now, so that the model
computes what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_ROLES = {
    "composition.score.first": ("composition.score.left",),
    "composition.score.second": ("composition.score.right",),
    "decomposition.score.first": ("decomposition.score.parent",),
    "decomposition.score.second": ("decomposition.score.left", "decomposition.score.right"),
}
_LAYERS = {"0": "0", "3": "2"}
"""Of a map; dropout had a place of its own between them."""

NAMES_NOW = {
    f"{role}.{layer}.": tuple(f"{now}.{_LAYERS[layer]}." for now in roles_now)
    for role, roles_now in _ROLES.items()
    for layer in _LAYERS
}
"""How a parameter's name began then, and how the names begin that its values go to now."""


def weights_now(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The core model's weights under the names of now; those of now are left as they are."""
    renamed = {}
    for name, tensor in weights.items():
        begin = next((then for then in NAMES_NOW if name.startswith(then)), "")
        for number, now in enumerate(NAMES_NOW.get(begin, ("",))):
            renamed[now + name.removeprefix(begin)] = tensor.clone() if number else tensor
    return renamed


def config_now(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json of then (its score maps had a dropout), said as it is now.

    Sizes left to their defaults are those of then: half of today's, a quarter in the parser.
    """
    composition, parser = values.get("composition"), values.get("parser") or {}
    if not isinstance(composition, Mapping) or "score_dropout" not in composition:
        return dict(values)
    current = {name: value for name, value in composition.items() if name != "score_dropout"}
    return {
        **values,
        "composition": current,
        "token_head_dim": values.get("token_head_dim") or 2 * values["hidden_dim"],
        "parser": {**parser, "score_dim": parser.get("score_dim") or parser["dim"]},
    }
