"""What a model is given: packed contexts of whole sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from gpst.chart.atoms import AtomRule


@dataclass(frozen=True)
class BatchCounts:
    """The numbers that losses are means over."""

    tokens: int
    sentences: int

    @property
    def actions(self) -> int:
        """GEN and COMP actions: 2n - 1 a sentence of n tokens."""
        return 2 * self.tokens - self.sentences

    @property
    def splits(self) -> int:
        """Internal nodes of the trees: n - 1 a sentence."""
        return self.tokens - self.sentences

    def __add__(self, other: BatchCounts) -> BatchCounts:
        return BatchCounts(self.tokens + other.tokens, self.sentences + other.sentences)


@dataclass(frozen=True)
class ContextBatch:
    """Contexts one after another, each made of whole sentences.

    Args:
        tokens: (N,) token ids of all contexts.
        sentence_lengths: (S,) tokens of each sentence, at least 1; stays on the CPU.
        sentences_per_context: (B,) sentences of each context, at least 1; stays on the CPU.
        inner: (N,) whether the boundary after a token lies inside an atom (a word of several
            pieces), which becomes a constituent; stays on the CPU. None: there are no atoms.
        atoms: whether the chart's cells may cross atoms; see gpst/chart/atoms.py.

    Raises:
        ValueError: they do not describe the same batch.
    """

    tokens: Tensor
    sentence_lengths: np.ndarray
    sentences_per_context: np.ndarray
    inner: np.ndarray | None = field(default=None, kw_only=True)
    atoms: AtomRule = field(default="constrain_tree", kw_only=True)

    def __post_init__(self) -> None:
        lengths, per_context = self.sentence_lengths, self.sentences_per_context
        if len(lengths) == 0 or len(per_context) == 0:
            raise ValueError("a batch needs at least one context with one sentence")
        if int(lengths.min()) < 1 or int(per_context.min()) < 1:
            raise ValueError("every sentence needs a token and every context a sentence")
        if int(lengths.sum()) != self.tokens.numel() or int(per_context.sum()) != len(lengths):
            raise ValueError(
                f"{self.tokens.numel()} tokens, {len(lengths)} sentences: sentence_lengths sum to "
                f"{int(lengths.sum())} and sentences_per_context to {int(per_context.sum())}"
            )
        if self.inner is not None and self.inner.shape != (self.tokens.numel(),):
            raise ValueError(f"inner is {self.inner.shape} of {self.tokens.numel()} tokens")

    @classmethod
    def from_sentences(
        cls,
        contexts: list[list[list[int]]],
        inner: Sequence[Sequence[Sequence[bool]]] | None = None,
        atoms: AtomRule = "constrain_tree",
    ) -> ContextBatch:
        """A batch from token ids, as contexts[context][sentence][token], and `inner` likewise."""
        sentences = [sentence for context in contexts for sentence in context]
        flat = [token for sentence in sentences for token in sentence]
        return cls(
            torch.tensor(flat, dtype=torch.int64),
            np.array([len(s) for s in sentences], dtype=np.int64),
            np.array([len(c) for c in contexts], dtype=np.int64),
            inner=None
            if inner is None
            else np.array([b for context in inner for sentence in context for b in sentence], bool),
            atoms=atoms,
        )

    @property
    def num_tokens(self) -> int:
        return self.tokens.numel()

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_lengths)

    @property
    def num_contexts(self) -> int:
        return len(self.sentences_per_context)

    @cached_property
    def counts(self) -> BatchCounts:
        return BatchCounts(self.num_tokens, self.num_sentences)

    @cached_property
    def sentence_starts(self) -> np.ndarray:
        """(S,) flat position of the first token of each sentence."""
        return np.cumsum(self.sentence_lengths) - self.sentence_lengths

    @cached_property
    def context_lengths(self) -> np.ndarray:
        """(B,) tokens of each context."""
        first = np.cumsum(self.sentences_per_context) - self.sentences_per_context
        return np.add.reduceat(self.sentence_lengths, first)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ContextBatch:
        return replace(self, tokens=self.tokens.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> ContextBatch:
        return replace(self, tokens=self.tokens.pin_memory())


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy of an array on a device; the host does not wait for it.

    From pageable memory it would: the driver first waits for the stream, whatever `non_blocking`.
    """
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def padded_rows(lengths: np.ndarray) -> Int64[np.ndarray, "N"]:
    """Where the items of rows of the given lengths lie in a (rows, longest) padded table.

    Args:
        lengths: (B,) items of each row.
    Returns:
        (sum of lengths,) flat positions row * longest + column.
    """
    longest = int(lengths.max())
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(lengths)), lengths)
    column = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    return row * longest + column
