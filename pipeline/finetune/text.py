"""Texts of a task as the model reads them: sentences of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_prep.segment.segmenters import get_segmenter
from data_prep.tokenizer.load import load_tokenizer

Sentences = list[list[int]]
"""Token ids of a text, as [sentence][token]."""


class TextReader:
    """Cuts texts into sentences and tokens, as data_prep does with a corpus.

    Args:
        folder: of tokenizer.json.
        segmenter: see `data_prep.segment.segmenters`; "none" makes a text one sentence.
    Raises:
        data_prep.errors.DataPrepError: there is no usable tokenizer, or no such segmenter.
    """

    def __init__(self, folder: Path, segmenter: str = "fast"):
        self.tokenizer = load_tokenizer(folder)
        self._encoder = self.tokenizer.reference()
        self._segmenter = get_segmenter(segmenter)
        self.identity = (self.tokenizer.sha256, self._segmenter.name, self._segmenter.version)
        """Says which tokens and sentences come out."""

    @property
    def cls(self) -> int:
        """The token that a label is read at."""
        return self.tokenizer.bos_id

    @property
    def end(self) -> int:
        """The token that ends a text."""
        return self.tokenizer.end_of_document_id

    def read(self, texts: Sequence[str], goes_on: bool = False) -> list[Sentences]:
        """The sentences of each text; runs of white space count as one space.

        Args:
            goes_on: the texts stand after others, so that they start with a space.
        """
        split = self.split(texts, goes_on)
        every = [sentence for of_text in split for sentence in of_text]
        encoded = iter(self._encoder.encode_batch(every, add_special_tokens=False))
        ids = [[next(encoded).ids for _ in of_text] for of_text in split]
        return [[sentence for sentence in of_text if sentence] for of_text in ids]

    def split(self, texts: Sequence[str], goes_on: bool = False) -> list[list[str]]:
        """The sentences of each text as text; each but the first begins with a space."""
        plain = [" ".join(text.split()) for text in texts]
        whole = [(" " if goes_on else "") + text if text else "" for text in plain]
        full = [number for number, text in enumerate(whole) if text]
        split: list[list[str]] = [[] for _ in texts]
        if not full:
            return split
        # A lone surrogate cannot be written in UTF-8.
        parts = [whole[number].encode("utf-8", "replace") for number in full]
        ends = np.cumsum([len(part) for part in parts])
        data = np.frombuffer(b"".join(parts), np.uint8)
        cuts, sentence_ends = self._segmenter.cut(data, ends)
        bounds = pairwise([0, *cuts.tolist()])
        sentences = [data[start:end].tobytes().decode("utf-8") for start, end in bounds]
        first = 0
        for number, last in zip(full, sentence_ends.tolist(), strict=True):
            split[number] = sentences[first:last]
            first = last
        return split


def length(sentences: Sentences) -> int:
    """Tokens of a text."""
    return sum(map(len, sentences))


def cut(sentences: Sentences, limit: int) -> Sentences:
    """The first `limit` tokens of a text."""
    shortened: Sentences = []
    for sentence in sentences:
        if limit <= 0:
            break
        shortened.append(sentence[:limit])
        limit -= len(sentence)
    return shortened


def cut_pair(first: Sentences, second: Sentences, limit: int) -> tuple[Sentences, Sentences, bool]:
    """Both texts with at most `limit` tokens together, and whether any were taken away.

    Tokens are taken from the end of the longer one, until the two are equally long.
    """
    a, b = length(first), length(second)
    if a + b <= limit:
        return first, second, False
    if min(a, b) >= (limit + 1) // 2:
        a, b = limit - limit // 2, limit // 2
    elif a > b:
        a = limit - b
    else:
        b = limit - a
    return cut(first, a), cut(second, b), True
