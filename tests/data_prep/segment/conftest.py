"""The ``fast`` segmenter as plain Python: quick to start, and it can count what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from data_prep.segment import cut, lines, rules, scan, wide, words
from data_prep.segment.fast import BYTE_CLASS, FastSegmenter


class CountedBytes:
    """Bytes that count how many of them are read."""

    def __init__(self, raw: bytes):
        self.raw, self.reads = raw, 0

    def __getitem__(self, place):
        part = self.raw[place]
        self.reads += len(part) if isinstance(place, slice) else 1
        return part


@contextmanager
def _plain_python() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (cut, lines, rules, scan, wide, words):
            for name, value in list(vars(module).items()):
                if hasattr(value, "py_func"):
                    patch.setattr(module, name, value.py_func)
        yield


def _cut_plainly(text: str, language: str = "en") -> tuple[list[str], int]:
    data = CountedBytes(text.encode())
    size, sentences = len(data.raw), np.empty(1, np.int64)
    out = np.empty(size + 1, np.int64)
    table = FastSegmenter(language)._words
    with _plain_python():
        count = cut.cut_documents(data, np.array([size]), out, sentences, BYTE_CLASS, table)
    starts = [0, *out[: count - 1].tolist()]
    pieces = [data.raw[a:b].decode() for a, b in zip(starts, out[:count].tolist(), strict=True)]
    return pieces, data.reads


@pytest.fixture(scope="session")
def cut_plainly() -> Callable[..., tuple[list[str], int]]:
    """cut_plainly(text, language) -> (its sentences, the bytes that were read)."""
    return _cut_plainly
