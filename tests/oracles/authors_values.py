"""Random weights in the authors' format and what their released code computes for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "parity"
CASES = ("plain", "scaled")
HEADS = (4, 4, 4)
"""Of generator, composition and parser."""
BOS = 0


@dataclass(frozen=True)
class AuthorsValues:
    """One set of weights."""

    tensors: dict[str, Tensor]
    contexts: list[list[list[int]]]
    parser_scores: list[list[float]]
    """Of each sentence's boundaries, without the constant that its MLP adds to all."""
    spans: list[set[tuple[int, int]]]
    """Of each sentence's induced tree, [first, last] token; without single tokens."""
    log_p: list[list[float]]
    """Of each context's tokens, given the induced trees' nodes before them."""
    losses: dict[str, float]
    """By our names, in nats a token, action or split."""


def authors_values(case: str) -> AuthorsValues:
    """Args: case: one of CASES."""
    values: dict[str, Any] = json.loads((FOLDER / "parity.json").read_text())
    own = values["cases"][case]
    with np.load(FOLDER / f"parity_{case}.npz") as stored:
        tensors = {name: torch.from_numpy(stored[name]) for name in stored.files}
    return AuthorsValues(
        tensors,
        values["contexts"],
        own["parser_scores_without_constant"],
        [{(i, j) for i, j in spans} for spans in own["induced_spans"]],
        own["token_log_probabilities"],
        {name.partition("_nats_per_")[0]: value for name, value in own["losses"].items()},
    )
