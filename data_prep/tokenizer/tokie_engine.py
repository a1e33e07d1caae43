"""A faster engine for WordPiece: the package ``tokie``."""

from __future__ import annotations

import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np

from data_prep.tokenizer.load import LoadedTokenizer
from data_prep.tokenizer.reference import flatten, without_specials
from gpst.jit.compiled import compiled


class TokieEngine:
    """``tokie``: WordPiece, for pieces of common characters.

    It drops characters that its Unicode tables do not know, unlike ``tokenizers``; so pieces with
    other than Latin letters and general punctuation go to the reference. So do long ones: from
    64 KiB on it cuts a piece into as many as there are CPUs, also inside words.
    """

    name = "tokie"
    LONGEST = 1 << 15

    def __init__(self, loaded: LoadedTokenizer):
        import tokie

        self.version = metadata.version("tokie")
        self._reference = loaded.reference()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tokenizer.json")
            path.write_text(without_specials(loaded.json_text), encoding="utf-8")
            self._tokenizer = tokie.Tokenizer.from_json(str(path))

    def encode(self, data: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See ``Engine.encode``."""
        common = np.empty(len(ends), np.bool_)
        _find_common(data, ends, common)
        common &= np.diff(ends, prepend=0) <= self.LONGEST
        raw = data.tobytes()
        ids: list[list[int]] = []
        start = 0
        for end, fast in zip(ends.tolist(), common.tolist(), strict=True):
            text = raw[start:end].decode()
            encoder = self._tokenizer if fast else self._reference
            ids.append(encoder.encode(text, add_special_tokens=False).ids)
            start = end
        return flatten(ids)


@compiled
def _find_common(data, ends, out):
    """Pieces of Latin letters (below U+0340) and general punctuation (U+2000 to U+203F) only."""
    start = 0
    for p in range(len(ends)):
        i = start
        while i < ends[p]:
            if data[i] < 0xCD:
                i += 1
            elif data[i] == 0xE2 and data[i + 1] == 0x80:
                i += 3
            else:
                break
        out[p] = i >= ends[p]
        start = ends[p]
