"""Sentence segmenters by name.

A segmenter cuts documents that lie one after another in one array of UTF-8 bytes. Every cut falls
right before white space, at a document's end, or right behind a full stop of Chinese or Japanese,
so that a tokenizer gives the same tokens for the sentences as for the whole text.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from data_prep.errors import UsageError
from data_prep.segment.languages import LANGUAGES

NAMES = ("fast", "none", "nupunkt", "punkt", "sentencex")


class Segmenter(Protocol):
    """What all segmenters offer."""

    name: str
    version: str

    def cut(self, data: np.ndarray, document_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cut documents into sentences.

        data: (n,) uint8, valid UTF-8. document_ends: (D,) int64, exclusive, increasing, the last is
        n. Returns sentence_ends (S,) int64 in bytes of ``data``, and (D,) int64, the exclusive end
        of each document in sentences. No sentence is empty or only white space.
        """
        ...


class WholeDocuments:
    """``none``: a document is one sentence."""

    name = "none"
    version = "1"

    def cut(self, data: np.ndarray, document_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See Segmenter.cut."""
        return document_ends, np.arange(1, len(document_ends) + 1)


def segmenter_record(segmenter: Segmenter, language: str) -> dict[str, str]:
    """What a manifest says of a segmenter."""
    record = {"name": segmenter.name, "version": segmenter.version}
    return record if segmenter.name == "none" else record | {"language": language}


def get_segmenter(name: str, language: str = "en") -> Segmenter:
    """The segmenter of a name. Raises UsageError for an unknown or not installed one.

    language: a key of ``languages.LANGUAGES``.
    """
    if language not in LANGUAGES:
        raise UsageError(f"language {language!r} is not known; choose from {', '.join(LANGUAGES)}")
    if name == "fast":
        from data_prep.segment.fast import FastSegmenter

        return FastSegmenter(language)
    if name == "none":
        return WholeDocuments()
    if name in NAMES:
        from data_prep.segment.optional import load_optional

        return load_optional(name, language)
    raise UsageError(f"segmenter {name!r} does not exist; choose from {', '.join(NAMES)}")
