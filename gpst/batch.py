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
class LabelledCounts(BatchCounts):
    """Of a part of the tokens, and of the sentences that they lie in."""

    of_splits: int = 0

    @property
    def actions(self) -> int:
        """GEN of the tokens, and COMP of the sentences."""
        return self.tokens + self.of_splits

    @property
    def splits(self) -> int:
        """Internal nodes of the sentences' trees."""
        return self.of_splits


@dataclass(frozen=True)
class ContextBatch:
    """Contexts one after another, each made of whole sentences.

    Args:
        tokens: (N,) token ids of all contexts.
        sentence_ends: (S,) number of tokens up to the end of each sentence, rising; stays on the
            CPU.
        context_ends: (B,) number of sentences up to the end of each context, rising; stays on the
            CPU.
        inside_word: (N,) whether the boundary after a token lies inside an atom (a word of several
            pieces), which becomes a constituent; stays on the CPU. None: there are no atoms.
        atoms: whether the chart's cells may cross atoms; see gpst/chart/atoms.py.
        boundary_scores: (N,) scores that order the chart of training in place of the parser's, as
            those of gpst/chart/phrase_edges.py; stays on the CPU. None: the parser's do.
        labelled: (N,) tokens that have losses; trees have them where a token of the sentence has;
            stays on the CPU. None: all.

    Raises:
        ValueError: they do not describe the same batch.
    """

    tokens: Tensor
    sentence_ends: np.ndarray
    context_ends: np.ndarray
    inside_word: np.ndarray | None = field(default=None, kw_only=True)
    atoms: AtomRule = field(default="constrain_tree", kw_only=True)
    boundary_scores: np.ndarray | None = field(default=None, kw_only=True)
    labelled: np.ndarray | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        sentences, contexts = self.sentence_ends, self.context_ends
        if len(sentences) == 0 or len(contexts) == 0:
            raise ValueError("a batch needs at least one context with one sentence")
        if int(self.sentence_lengths.min()) < 1 or int(np.diff(contexts, prepend=0).min()) < 1:
            raise ValueError("every sentence needs a token and every context a sentence")
        if sentences[-1] != self.tokens.numel() or contexts[-1] != len(sentences):
            raise ValueError(
                f"{self.tokens.numel()} tokens, {len(sentences)} sentences: the last sentence ends "
                f"at token {sentences[-1]} and the last context at sentence {contexts[-1]}"
            )
        for name in ("inside_word", "boundary_scores", "labelled"):
            array = getattr(self, name)
            if array is not None and array.shape != (self.tokens.numel(),):
                raise ValueError(f"{name} is {array.shape} of {self.tokens.numel()} tokens")

    @classmethod
    def from_sentences(
        cls,
        contexts: list[list[list[int]]],
        inside_word: Sequence[Sequence[Sequence[bool]]] | None = None,
        atoms: AtomRule = "constrain_tree",
    ) -> ContextBatch:
        """A batch from token ids, as contexts[context][sentence][token]; `inside_word` likewise."""
        sentences = [sentence for context in contexts for sentence in context]
        flat = [token for sentence in sentences for token in sentence]
        return cls(
            torch.tensor(flat, dtype=torch.int64),
            np.cumsum([len(s) for s in sentences], dtype=np.int64),
            np.cumsum([len(c) for c in contexts], dtype=np.int64),
            inside_word=None
            if inside_word is None
            else np.array(
                [b for context in inside_word for sentence in context for b in sentence], bool
            ),
            atoms=atoms,
        )

    @property
    def num_tokens(self) -> int:
        return self.tokens.numel()

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_ends)

    @property
    def num_contexts(self) -> int:
        return len(self.context_ends)

    @cached_property
    def counts(self) -> BatchCounts:
        if self.labelled is None:
            return BatchCounts(self.num_tokens, self.num_sentences)
        lengths = self.sentence_lengths[self.labelled_sentences]
        splits = int(lengths.sum()) - len(lengths)
        return LabelledCounts(int(self.labelled.sum()), len(lengths), splits)

    @property
    def labelled_sentences(self) -> np.ndarray:
        """(S,) sentences of which a token has losses."""
        if self.labelled is None:
            return np.ones(self.num_sentences, bool)
        before = np.concatenate(([0], np.cumsum(self.labelled)[self.sentence_ends - 1]))
        return np.diff(before) > 0

    def with_labels(self, labelled: np.ndarray) -> ContextBatch:
        """The same with losses for a part of the tokens."""
        return replace(self, labelled=labelled)

    @cached_property
    def sentence_lengths(self) -> np.ndarray:
        """(S,) tokens of each sentence."""
        return np.diff(self.sentence_ends, prepend=0)

    @property
    def context_token_ends(self) -> np.ndarray:
        """(B,) number of tokens up to the end of each context."""
        return self.sentence_ends[self.context_ends - 1]

    @property
    def context_action_ends(self) -> np.ndarray:
        """(B,) number of GEN and COMP actions up to the end of each context."""
        return 2 * self.context_token_ends - self.context_ends

    @property
    def context_lengths(self) -> np.ndarray:
        """(B,) tokens of each context."""
        return np.diff(self.context_token_ends, prepend=0)

    @property
    def context_actions(self) -> np.ndarray:
        """(B,) actions of each context."""
        return np.diff(self.context_action_ends, prepend=0)

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


def padded_rows(ends: np.ndarray) -> Int64[np.ndarray, "N"]:
    """Where the items of rows of unequal lengths lie in a (rows, longest) padded table.

    Args:
        ends: (B,) number of items up to the end of each row.
    Returns:
        flat position, row * longest + column, of each item.
    """
    lengths = np.diff(ends, prepend=0)
    row_starts = np.arange(len(ends)) * lengths.max()
    return np.arange(ends[-1]) + np.repeat(row_starts - (ends - lengths), lengths)
