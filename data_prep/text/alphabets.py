"""Which of several similar encodings of the Latin script fits a text, by the alphabets it may have.

A detector of disorder cannot tell them apart: `őű` of a Hungarian text reads `õû` in another
encoding, each a letter of some language. But no language has the letters of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_WESTERN = (
    "äöüß",  # German
    "àâæçèéêëîïôùûüÿœ",  # French
    "áéíñóúüªº",  # Spanish
    "àáâãçéêíóôõúüªº",  # Portuguese
    "àèéìíîòóùú",  # Italian
    "àçèéíïòóúü",  # Catalan
    "áèéêëïíóöúü",  # Dutch
    "àåäéöüšž",  # Swedish, Finnish
    "àåæøéèêóòôâ",  # Danish, Norwegian
    "áæéðíóöúýþ",  # Icelandic
    "äõöüšž",  # Estonian
)
_CENTRAL = (
    "áčďéěíňóřšťúůýž",  # Czech
    "áäčďéíĺľňóôŕšťúýž",  # Slovak
    "óąćęłńśźż",  # Polish
    "áéíóöúüőű",  # Hungarian
    "ćčđšž",  # Slovene, Croatian
    "âîăşţ",  # Romanian
)
_TURKISH = ("âçîöûüğış",)
_BALTIC = (
    "āčēģīķļņšūž",  # Latvian
    "ąčėęįšūųž",  # Lithuanian
    "äõöüšž",  # Estonian
)
LATIN_LETTERS = {  # an earlier one is preferred to another that fits as well
    "cp1252": _WESTERN, "cp1250": _CENTRAL, "iso8859_2": _CENTRAL, "cp1257": _BALTIC,
    "cp1254": _TURKISH, "iso8859_15": _WESTERN, "iso8859_9": _TURKISH, "mac_roman": _WESTERN,
    "cp850": _WESTERN, "cp852": _CENTRAL, "cp437": _WESTERN, "cp1258": (),
}  # fmt: skip
"""Letters beyond ASCII, in small, of languages that are written in an encoding."""
_SIGNS = frozenset("\xa0«»„“”‘’‚–—…•·°§©®™€£¿¡´\ufeff")  # of any language


def most_fitting(data: bytes, encodings: Sequence[str]) -> str | None:
    """The one of similar encodings in which a language's alphabet holds most letters of a text.

    Args:
        encodings: Python's names; others than those of LATIN_LETTERS are not chosen.
    Returns:
        None where none of them is in the table.
    """
    known = [encoding for encoding in LATIN_LETTERS if encoding in encodings]
    return max(known, key=lambda encoding: _share(data, encoding), default=None)


def _share(data: bytes, encoding: str) -> float:
    """The part of the characters beyond ASCII that the language has which fits best."""
    counts: Counter[str] = Counter()
    for byte, number in Counter(data).items():
        if byte > 127:
            character = bytes([byte]).decode(encoding, "replace")
            if character not in _SIGNS:
                counts[character.lower()[:1]] += number
    total = counts.total()
    if not total:
        return 1.0
    found = (sum(counts[letter] for letter in letters) for letters in LATIN_LETTERS[encoding])
    return max(found, default=0) / total
