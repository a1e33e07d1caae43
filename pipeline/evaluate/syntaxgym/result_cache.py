"""Surprisals that an earlier, interrupted evaluation has left, so that it goes on from there."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.evaluate.batches import chunks
from pipeline.evaluate.result_cache import Kept
from pipeline.evaluate.syntaxgym.surprisal import (
    Progress,
    Surprisals,
    TokenSurprisals,
)


class KeptSurprisals:
    """A language model's surprisals, each text's kept as soon as it is known.

    Args:
        inner: the model.
        kept: by text; its key says what the surprisals depend on besides.
        chunk_texts: texts that are read at once, and lost when that is interrupted.
        progress: called with the number of texts that were there already.
    """

    def __init__(
        self,
        inner: Surprisals,
        kept: Kept,
        chunk_texts: int,
        progress: Progress = lambda done: None,
    ):
        self._inner, self._kept, self._progress = inner, kept, progress
        self._chunk_texts = chunk_texts
        self.num_kept = 0
        """Texts that were there already."""

    def __call__(self, texts: Sequence[str]) -> list[TokenSurprisals]:
        """See `Surprisals`."""
        missing = sorted({t for t in texts if t not in self._kept}, key=lambda t: (len(t), t))
        self.num_kept = len({*texts}) - len(missing)
        self._progress(self.num_kept)
        for chunk in chunks(missing, self._chunk_texts):
            found = zip(chunk, self._inner(chunk), strict=True)
            self._kept.add({text: [own.spans, own.bits] for text, own in found})
        return [_surprisals(*self._kept[text]) for text in texts]


def _surprisals(spans: list[list[int]], bits: list[float]) -> TokenSurprisals:
    return TokenSurprisals(tuple((start, end) for start, end in spans), tuple(bits))
