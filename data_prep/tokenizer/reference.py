"""What an engine is, and the one that all others are compared with: the library ``tokenizers``."""

from __future__ import annotations

import json
import os
from importlib import metadata
from itertools import chain
from typing import Protocol

import numpy as np

from data_prep.tokenizer.load import LoadedTokenizer


class Engine(Protocol):
    """Encodes pieces of one array of bytes."""

    name: str
    version: str

    def encode(self, data: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encode the pieces of ``data`` that end at ``ends``.

        data: (n,) uint8, valid UTF-8. ends: (P,) int64, exclusive; the last is n. Returns ids
        (T,) uint32 and (P,) int64, the exclusive end of each piece in tokens.
        """
        ...


class ReferenceEngine:
    """The library ``tokenizers``, one thread."""

    name = "tokenizers"
    # its results take a hundred bytes a token until they are arrays
    GROUP_BYTES = 1 << 19

    def __init__(self, loaded: LoadedTokenizer):
        # the worker processes are the parallelism
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.version = metadata.version("tokenizers")
        self._tokenizer = loaded.reference()

    def encode(self, data: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See ``Engine.encode``."""
        raw = data.tobytes()
        ids: list[np.ndarray] = []
        counts: list[int] = []
        group: list[str] = []
        size = start = 0
        for end in ends.tolist():
            group.append(raw[start:end].decode())
            size += end - start
            start = end
            if size > self.GROUP_BYTES:
                self._encode_group(group, ids, counts)
                group, size = [], 0
        self._encode_group(group, ids, counts)
        return np.concatenate(ids), np.cumsum(counts, dtype=np.int64)

    def _encode_group(self, pieces: list[str], ids: list[np.ndarray], counts: list[int]) -> None:
        encodings = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        flat, ends = flatten([encoding.ids for encoding in encodings])
        ids.append(flat)
        counts.extend(np.diff(ends, prepend=0).tolist())


def without_specials(json_text: str) -> str:
    """A tokenizer.json whose special tokens are not looked for in text."""
    values = json.loads(json_text)
    values["added_tokens"] = [t for t in values["added_tokens"] if not t["special"]]
    return json.dumps(values, ensure_ascii=False)


def flatten(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([len(piece) for piece in ids], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    flat = np.fromiter(chain.from_iterable(ids), np.uint32, total)
    return flat, ends
