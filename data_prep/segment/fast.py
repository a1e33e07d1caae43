"""The default segmenter: the rules of ``cut``, ``rules``, ``lines``, ``wide``, and their tables."""

from __future__ import annotations

from functools import cache

import numpy as np

from data_prep.segment.cut import cut_documents
from data_prep.segment.languages import LANGUAGES
from data_prep.segment.scan import CLOSER, DIGIT, LOWER, OPENER, SPACE, STOP, UPPER
from data_prep.segment.words import word_table

VERSION = 3


def _byte_classes() -> np.ndarray:
    table = np.zeros(256, np.uint8)
    groups = ((SPACE, b" \t\n\r"), (STOP, b".!?"), (CLOSER, b")]}"), (OPENER, b"([{"))
    for group, members in groups:
        table[list(members)] = group
    table[list(b"\"'*_`")] = CLOSER  # these open as well: see scan.next_word
    table[ord("A") : ord("Z") + 1] = UPPER
    table[ord("a") : ord("z") + 1] = LOWER
    table[ord("0") : ord("9") + 1] = DIGIT
    return table


BYTE_CLASS = _byte_classes()


@cache
def _words(language: str) -> np.ndarray:
    return word_table(LANGUAGES[language])


class FastSegmenter:
    """The default: compiled rules. See ``data_prep.segment.segmenters.Segmenter``."""

    name = "fast"
    version = str(VERSION)

    def __init__(self, language: str = "en"):
        self._words = _words(language)

    def cut(self, data: np.ndarray, document_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cut documents into sentences; see ``Segmenter.cut``."""
        # a sentence takes at least a byte and the white space before the next one
        out = np.empty(len(data) // 2 + len(document_ends) + 1, np.int64)
        sentences = np.empty(len(document_ends), np.int64)
        count = cut_documents(data, document_ends, out, sentences, BYTE_CLASS, self._words)
        return out[:count].copy(), sentences
