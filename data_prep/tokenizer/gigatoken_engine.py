"""A faster engine for byte-level BPE: the package ``gigatoken``."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from importlib import metadata

import numpy as np

from data_prep.tokenizer.load import LoadedTokenizer
from data_prep.tokenizer.reference import ReferenceEngine, without_specials
from gpst.jit.compiled import compiled


class GigatokenEngine:
    """``gigatoken``: byte-level BPE, one document after another.

    A call takes a microsecond; its batches need the package awkward, 50 MiB and 0.2 s a process.
    Its Unicode tables are newer than those of ``tokenizers``, so that it takes other characters for
    letters; pieces with characters that Python does not know yet go to the reference.
    """

    name = "gigatoken"
    # Its cache of words grows without bound: some 40 MiB in 64 MiB of text of a wide vocabulary. A
    # new encoder, which takes 0.1 s, is made after so many bytes.
    RENEW_BYTES = 64 << 20
    LONGEST = 1 << 18

    def __init__(self, loaded: LoadedTokenizer):
        import gigatoken

        self.version = metadata.version("gigatoken")
        self._load = gigatoken.Tokenizer.from_json
        self._json = without_specials(loaded.json_text)
        self._encoder = self._load(self._json)
        self._bytes = 0
        self._loaded = loaded
        self._reference: ReferenceEngine | None = None
        self._unknown = _unknown_characters()

    def encode(self, data: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See ``Engine.encode``."""
        if self._bytes > self.RENEW_BYTES:
            del self._encoder  # never two at a time
            self._encoder = self._load(self._json)
            self._bytes = 0
        self._bytes += len(data)
        strange = np.empty(len(ends), np.bool_)
        _find_unknown(data, ends, self._unknown, strange)
        strange |= np.diff(ends, prepend=0) > self.LONGEST
        view, start = data.data, 0
        ids = [np.empty(0, np.uint32)]
        for end, by_reference in zip(ends.tolist(), strange.tolist(), strict=True):
            if by_reference:
                ids.append(self._by_reference(data[start:end]))
            else:
                ids.append(self._encoder.encode(bytes(view[start:end])))
            start = end
        counts = np.fromiter(map(len, ids[1:]), np.int64, len(ends))
        return np.concatenate(ids, dtype=np.uint32), np.cumsum(counts)

    def _by_reference(self, piece: np.ndarray) -> np.ndarray:
        if self._reference is None:
            self._reference = ReferenceEngine(self._loaded)
        return self._reference.encode(piece, np.array([len(piece)]))[0]


BLOCK = 64  # bytes looked at at a time
_KNOWN_PLANES = 0x40000  # beyond are tags, private use and nothing


@lru_cache(maxsize=1)
def _unknown_characters() -> np.ndarray:
    """(_KNOWN_PLANES,) bool: characters that Python's Unicode tables do not have."""
    unknown = (unicodedata.category(chr(place)) == "Cn" for place in range(_KNOWN_PLANES))
    return np.fromiter(unknown, np.bool_, _KNOWN_PLANES)


@compiled
def _find_unknown(data, ends, unknown, out):
    """Pieces with a character of three or four bytes that is ``unknown``, or beyond the planes."""
    start = 0
    for p in range(len(ends)):
        found = False
        while start + BLOCK <= ends[p]:
            block, high = data[start : start + BLOCK], np.uint8(0)
            for k in range(BLOCK):  # without an exit inside, so that it becomes vector code
                high |= np.uint8(block[k] >= 0xE0)
            if high:
                found |= _has_unknown(data, start, start + BLOCK, unknown)
            start += BLOCK
        found |= _has_unknown(data, start, ends[p], unknown)
        start = ends[p]
        out[p] = found


@compiled
def _has_unknown(data, start, end, unknown):
    found = False
    for i in range(start, end):
        byte = data[i]
        if byte >= 0xE0:
            place = np.int64(byte & 0x0F)
            for k in range(1, 3 if byte < 0xF0 else 4):
                place = (place << 6) | (data[i + k] & 0x3F)
            found |= place >= len(unknown) or unknown[place]
    return found
