"""Which of several similar encodings of the Latin script fits a text, by the alphabets it may have.

A detector of disorder cannot tell them apart: `őű` of a Hungarian text reads `õû` in another
encoding, each a letter of some language. But no language has the letters of both.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

_WESTERN = (
    "üäöß",  # German
    "éèàêçôîùâïûœëüÿæ",  # French
    "óíáéñúüºª",  # Spanish
    "ãçáéíóêõâàúôüºª",  # Portuguese
    "èàùòéìíóîú",  # Italian
    "àéóèíçòúïü",  # Catalan
    "ëéïèóöüáíê",  # Dutch
    "äöåéüàáèšž",  # Swedish, Finnish
    "åæøéèêóòôâà",  # Danish, Norwegian
    "ðíáóúýæöþé",  # Icelandic
    "äõüöšž",  # Estonian
)
_CENTRAL = (
    "íáěřčéžýšůúťňďó",  # Czech
    "áíčéýžšťúľôňóďäŕĺ",  # Slovak
    "łąężśćóńź",  # Polish
    "áéóöőíüúű",  # Hungarian
    "čšžćđ",  # Slovene, Croatian
    "ăţîşâ",  # Romanian
)
_TURKISH = ("ışüğçöâîû",)
_BALTIC = (
    "āīēšļūņžķģč",  # Latvian
    "ėšųįžąčęū",  # Lithuanian
    "äõüöšž",  # Estonian
)
LATIN_LETTERS = {  # an earlier one is preferred to another that fits as well
    "cp1252": _WESTERN, "cp1250": _CENTRAL, "iso8859_2": _CENTRAL, "cp1257": _BALTIC,
    "cp1254": _TURKISH, "iso8859_15": _WESTERN, "iso8859_9": _TURKISH, "mac_roman": _WESTERN,
    "cp850": _WESTERN, "cp852": _CENTRAL, "cp437": _WESTERN, "cp1258": (),
}  # fmt: skip
"""Letters beyond ASCII, in small and roughly by frequency, of languages written in an encoding."""
_SIGNS = frozenset("\xa0«»„“”‘‚–—…•·°§©®™€£¿¡´½¼¾±²³×\ufeff")  # of any language; not inside words
_YOD = 0xE9
_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"
_LOG_SIGN, _LOG_STRANGE = log(0.03), log(0.001)
_LOG_PRIOR = {"cp1252": 0.0, "mac_roman": -5.0, "cp850": -5.0, "cp852": -5.0, "cp437": -6.0}
"""Of encodings, relative to each other; others -2."""

MOST_BEYOND = 0.3
"""The part of the characters beyond ASCII in the Latin script; other scripts have more."""
LEAST_SHARE = 0.9
"""The part of them that has to fit one language."""
_BEYOND_ASCII = bytes(range(128, 256))
_INSIDE_WORDS = re.compile(rb"(?<=[A-Za-z\x80-\xff])[\x80-\xff](?=[A-Za-z\x80-\xff])")
_AFTER_SMALL = re.compile(rb"(?<=[a-z])[\x80-\xff]")


def most_fitting(data: bytes, encodings: Sequence[str]) -> str | None:
    """The one of similar encodings in which a text is most probable in some language.

    The n-th most frequent letter of a language counts as 1/n as probable as its first, a sign where
    words end as a rare letter.

    Args:
        encodings: Python's names; others than those of LATIN_LETTERS are not chosen.
    Returns:
        None where none of them is in the table.
    """
    return max(_fits(data, encodings), key=lambda fit: fit.log_p, default=_Fit(None)).encoding


def latin_encoding(data: bytes) -> str | None:
    """The encoding of a text that is mostly ASCII, where the rest are letters of one language."""
    num_beyond = len(data) - len(data.translate(None, _BEYOND_ASCII))
    num_visible = len(data.translate(None, string.whitespace.encode()))
    if not 0 < num_beyond <= MOST_BEYOND * num_visible:
        return None
    best = max(_fits(data, list(LATIN_LETTERS)), key=lambda fit: fit.log_p)
    return best.encoding if best.share >= LEAST_SHARE else None


def is_hebrew(data: bytes) -> bool:
    """Whether what looks like Cyrillic (cp1251) is Hebrew.

    Yod, frequent there, is й, which is rare; and there are no capitals, nor ы, ь, э, ю, я.
    """
    counts = Counter(data.translate(None, bytes(range(128))))
    letters = {v: n for v, n in counts.items() if bytes([v]).decode("cp1251", "replace").isalpha()}
    in_alphabet = sum(number for value, number in letters.items() if 0xE0 <= value <= 0xFA)
    return in_alphabet > 0.95 * sum(letters.values()) and letters.get(_YOD, 0) > 0.05 * in_alphabet


@dataclass(frozen=True)
class _Fit:
    """Of a text in an encoding, in the language that fits best."""

    encoding: str | None
    log_p: float = 0.0
    share: float = 0.0
    """The part of the characters beyond ASCII that the language has, or any."""


def _fits(data: bytes, encodings: Sequence[str]) -> list[_Fit]:
    """A fit for each of LATIN_LETTERS that is among the encodings, in the table's order."""
    counts = Counter(data.translate(None, bytes(range(128))))
    inside, after_small = (Counter(e.findall(data)) for e in (_INSIDE_WORDS, _AFTER_SMALL))
    return [_fit(counts, inside, after_small, name) for name in LATIN_LETTERS if name in encodings]


def _fit(
    counts: Counter[int], inside: Counter[bytes], after_small: Counter[bytes], encoding: str
) -> _Fit:
    num_signs = 0
    letters: Counter[str] = Counter()
    for value, number in counts.items():
        byte = bytes([value])
        character = byte.decode(encoding, "replace")
        if character in _SIGNS:
            num_signs += number - inside[byte]
            letters["strange"] += inside[byte]
        elif character == _APOSTROPHE:
            num_signs += number
        else:
            odd = after_small[byte] if character.isupper() else 0
            letters[character.lower()[:1]] += number - odd
            letters["strange"] += odd
    best = _Fit(encoding, -float("inf"))
    for alphabet in LATIN_LETTERS[encoding] or ("",):
        total = sum(1 / rank for rank in range(1, len(alphabet) + 1))
        ranks = {letter: rank for rank, letter in enumerate(alphabet, 1)}
        known = sum(number for letter, number in letters.items() if letter in ranks)
        log_p = (
            _LOG_PRIOR.get(encoding, -2.0)
            + num_signs * _LOG_SIGN
            + (letters.total() - known) * _LOG_STRANGE
        )
        log_p += sum(letters[letter] * -log(rank * total) for letter, rank in ranks.items())
        if log_p > best.log_p:
            share = (known + num_signs) / max(letters.total() + num_signs, 1)
            best = _Fit(encoding, log_p, share)
    return best
