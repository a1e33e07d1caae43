"""Engines that turn pieces of text into token ids: the library ``tokenizers``, or faster ones.

A faster engine is used only where it gives exactly the ids of ``tokenizers``: it is compared on a
set of awkward strings when it is made, and the reference takes its place when anything differs.
Pieces of more than an engine's LONGEST bytes go to the reference.
"""

from __future__ import annotations

import numpy as np

from data_prep.errors import UsageError
from data_prep.tokenizer.gigatoken_engine import GigatokenEngine
from data_prep.tokenizer.load import BYTE_BPE, WORDPIECE, LoadedTokenizer
from data_prep.tokenizer.reference import Engine, ReferenceEngine
from data_prep.tokenizer.tokie_engine import TokieEngine

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
    """``agrees``, compared once in a process: it takes about a second."""
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
