"""Engines that turn pieces of text into token ids: the library ``tokenizers``, or faster ones.

A faster engine is used only where it gives exactly the ids of ``tokenizers``: it is compared on a
set of awkward strings when it is made, and the reference takes its place when anything differs.
Pieces of more than an engine's LONGEST bytes go to the reference.
"""

from __future__ import annotations

import json
import os
import unicodedata
from functools import lru_cache
from importlib import metadata
from itertools import chain
from typing import Protocol

import numpy as np

from data_prep.errors import UsageError
from data_prep.tokenizer.load import BYTE_BPE, WORDPIECE, LoadedTokenizer
from gpst.jit.compiled import compiled

NAMES = ("auto", "tokenizers", "gigatoken", "tokie")

AWKWARD = (
    "Hello, world!  It's 3.14 o'clock; we'll go.\n\n\tTabs and   spaces \n",
    "naïve café — “quotes” … Ünïcödé ﬁ ½ ™ İstanbul ẞ",
    "日本語のテキスト 한국어 العربية עברית हिन्दी ไทย",
    "😀👩‍👩‍👧‍👦 🇩🇪 e\u0301 a\u030a \u200b\u200d\ufeff \u00a0\u3000\u2009x",
    "http://a.b/c?d=e&f#g user@example.com C++ #1 $5.00 50% a_b __init__ \\n",
    "<|endoftext|> [SEP] [CLS] <s> </s> [UNK]",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa " * 2,
    "x" * 101 + " " + "y" * 100 + " \ufffd\ufffd 'S 'RE 'll'd",
    "   leading\r\n\r\ntrailing   ",
    "0123456789 ١٢٣ Ⅷ ² 1,000,000 1st 2nd",
)
# repeated to the longest piece that an engine takes: lines without a space, one word
LONG_UNITS = (b"https://www.example.com/books/download\n", b"antidisestablishment")


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


def get_engine(name: str, loaded: LoadedTokenizer) -> Engine:
    """The engine of a name; ``auto`` takes the fastest one that agrees with the reference.

    Raises UsageError when an engine that was asked for by name is unknown, not installed, or
    differs from the reference on this tokenizer.
    """
    if name not in NAMES:
        raise UsageError(f"engine {name!r} does not exist; choose from {', '.join(NAMES)}")
    reference = ReferenceEngine(loaded)
    fast = {BYTE_BPE: GigatokenEngine, WORDPIECE: TokieEngine}.get(loaded.kind)
    if name == "tokenizers" or (name == "auto" and fast is None):
        return reference
    if name != "auto":
        fast = {"gigatoken": GigatokenEngine, "tokie": TokieEngine}[name]
    assert fast is not None
    try:
        engine = fast(loaded)
        same = _agrees_once(engine, reference, loaded)
        problem = None if same else "gives other ids than tokenizers"
    except ImportError:
        engine, problem = reference, f"is not installed; pip install {fast.name}"
    except Exception as error:  # a Rust panic or an unknown model: the reference can do it
        engine, problem = reference, f"cannot load it ({error})"
    if problem and name != "auto":
        raise UsageError(f"engine {name}, tokenizer {loaded.name}: {problem}; or: --engine auto")
    return reference if problem else engine


_agreed: set[tuple[type, str]] = set()
"""Engines and the sha256 of the tokenizers for which they agreed with the reference before."""


def _agrees_once(engine: Engine, reference: Engine, loaded: LoadedTokenizer) -> bool:
    """``agrees``, compared once in a process: it takes a quarter of a second."""
    key = type(engine), loaded.sha256
    if key not in _agreed and agrees(engine, reference):
        _agreed.add(key)
    return key in _agreed


def agrees(engine: Engine, reference: Engine) -> bool:
    """Whether two engines give the same ids for every awkward string, and for long ones."""
    pieces = [text.encode() for text in AWKWARD]
    longest = getattr(engine, "LONGEST", 0)
    pieces += [(unit * (longest // len(unit) + 1))[:longest] for unit in LONG_UNITS]
    data = np.frombuffer(b"".join(pieces), np.uint8)
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    results = zip(engine.encode(data, ends), reference.encode(data, ends), strict=True)
    return all(np.array_equal(result, expected) for result, expected in results)


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
        flat, ends = _flatten([encoding.ids for encoding in encodings])
        ids.append(flat)
        counts.extend(np.diff(ends, prepend=0).tolist())


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
        self._json = _without_specials(loaded.json_text)
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


class TokieEngine:
    """``tokie``: WordPiece, for pieces of common characters.

    It drops characters that its Unicode tables do not know, unlike ``tokenizers``; so pieces with
    other than Latin letters and general punctuation go to the reference. So do long ones: from
    64 KiB on it cuts a piece into as many as there are CPUs, also inside words.
    """

    name = "tokie"
    LONGEST = 1 << 15

    def __init__(self, loaded: LoadedTokenizer):
        import tempfile
        from pathlib import Path

        import tokie

        self.version = metadata.version("tokie")
        self._reference = loaded.reference()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tokenizer.json")
            path.write_text(_without_specials(loaded.json_text), encoding="utf-8")
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
        return _flatten(ids)


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


def _without_specials(json_text: str) -> str:
    """A tokenizer.json whose special tokens are not looked for in text."""
    values = json.loads(json_text)
    values["added_tokens"] = [t for t in values["added_tokens"] if not t["special"]]
    return json.dumps(values, ensure_ascii=False)


def _flatten(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([len(piece) for piece in ids], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    flat = np.fromiter(chain.from_iterable(ids), np.uint32, total)
    return flat, ends
