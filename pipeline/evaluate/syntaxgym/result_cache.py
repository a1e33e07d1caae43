"""Surprisals of an interrupted evaluation, so that the next one continues from there."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.evaluate.chunks import chunks
from pipeline.evaluate.result_cache import ResultCache
from pipeline.evaluate.syntaxgym.surprisal import (
    Progress,
    Surprisals,
    TokenSurprisals,
)


class CachedSurprisals:
    """A language model's surprisals, read from a cache where it has them.

    Args:
        inner: the model.
        cache: by text; its key must name what else the surprisals depend on.
        chunk_texts: texts that are read at once, and lost when that is interrupted.
        progress: called with the number of texts that the cache has.
    """

    def __init__(
        self,
        inner: Surprisals,
        cache: ResultCache,
        chunk_texts: int,
        progress: Progress = lambda done: None,
    ):
        self._inner, self._cache, self._progress = inner, cache, progress
        self._chunk_texts = chunk_texts
        self.num_cached = 0
        """Texts of the last call that the cache had."""

    def __call__(self, texts: Sequence[str]) -> list[TokenSurprisals]:
        """See `Surprisals`."""
        missing = sorted({t for t in texts if t not in self._cache}, key=lambda t: (len(t), t))
        self.num_cached = len({*texts}) - len(missing)
        self._progress(self.num_cached)
        for chunk in chunks(missing, self._chunk_texts):
            read = zip(chunk, self._inner(chunk), strict=True)
            self._cache.add({text: [tokens.spans, tokens.bits] for text, tokens in read})
        return [_surprisals(*self._cache[text]) for text in texts]


def _surprisals(spans: list[list[int]], bits: list[float]) -> TokenSurprisals:
    return TokenSurprisals(tuple((start, end) for start, end in spans), tuple(bits))
