"""The default segmenter: the rules of ``data_prep.segment.rules`` and their tables."""

from __future__ import annotations

import numpy as np

from data_prep.segment.abbreviations import word_table
from data_prep.segment.rules import cut_documents
from data_prep.segment.scan import CLOSER, DIGIT, LOWER, OPENER, SPACE, STOP, UPPER

VERSION = 1


def _byte_classes() -> np.ndarray:
    table = np.zeros(256, np.uint8)
    groups = ((SPACE, b" \t\n\r"), (STOP, b".!?"), (CLOSER, b")]}"), (OPENER, b"([{"))
    for group, members in groups:
        table[list(members)] = group
    table[list(b"\"'*_`")] = CLOSER  # these open as well: see next_word
    table[ord("A") : ord("Z") + 1] = UPPER
    table[ord("a") : ord("z") + 1] = LOWER
    table[ord("0") : ord("9") + 1] = DIGIT
    return table


BYTE_CLASS = _byte_classes()
WORD_TABLE = word_table()


class FastSegmenter:
    """The default: compiled rules. See ``data_prep.segment.segmenters.Segmenter``."""

    name = "fast"
    version = str(VERSION)

    def cut(self, data: np.ndarray, document_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cut documents into sentences; see ``Segmenter.cut``."""
        # a sentence takes at least a byte and the white space before the next one
        out = np.empty(len(data) // 2 + len(document_ends) + 1, np.int64)
        sentences = np.empty(len(document_ends), np.int64)
        count = cut_documents(data, document_ends, out, sentences, BYTE_CLASS, WORD_TABLE)
        return out[:count].copy(), sentences
