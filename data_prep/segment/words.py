"""Classes of words of the ``fast`` segmenter, and the table that compiled code finds them in.

All words are lower case and without their final stop. A word has one class before a stop:

- TITLE: a name follows; never the end of a sentence (Mr, Dr, Gen)
- NUMBERED: a number follows (No, p, Fig); otherwise an ordinary word
- LATIN: never the end of a sentence (e.g, i.e, cf)
- MAYBE: the end only when a word follows that often starts sentences (Inc, Jr, p.m, Jan)
- ENDING: the end unless a small letter follows (etc)

and any of these roles, as bits, beside it:

- STARTER: often starts sentences (The, He, In)
- PRONOUN, SAYING: who speaks, after a quotation ("Why?" he asked)
- GOES_ON: hardly starts a sentence, when it begins small (is, of)
- LABEL: a number follows that names a thing (Figure 1. The town)
"""

from __future__ import annotations

import numpy as np

from data_prep.segment.languages import Language
from gpst.jit.compiled import compiled_uncounted as compiled

TITLE, NUMBERED, LATIN, MAYBE, ENDING = range(1, 6)
STARTER, PRONOUN, SAYING, GOES_ON, LABEL = 1, 2, 4, 8, 16

TABLE_SIZE = 4096  # a power of two
_PRIME, _OFFSET, _MASK = 16777619, 2166136261, 0xFFFFFFFF


def fnv(word: bytes) -> int:
    """The 32-bit FNV-1a hash; the compiled code has the same."""
    value = _OFFSET
    for byte in word:
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def _spellings(word: str) -> set[bytes]:
    """How compiled code sees a word, which makes small letters of ASCII's only."""
    lower = {65 + k: 97 + k for k in range(26)}
    return {w.translate(lower).encode() for w in (word, word.capitalize())}


def word_table(language: Language) -> np.ndarray:
    """(TABLE_SIZE + 1, 3) int64: hash, class as an abbreviation (0 none), roles as bits.

    Of several classes of a word the first counts. Open addressing with linear probing; an empty
    slot has hash -1. The last row has in its second place whether numbers with a stop are ordinals.
    """
    classes: dict[bytes, int] = {}
    for group, words in (
        (TITLE, language.title),
        (NUMBERED, language.numbered),
        (LATIN, language.latin),
        (MAYBE, language.maybe),
        (ENDING, language.ending),
    ):
        for word in words.split():
            for spelling in _spellings(word):
                classes.setdefault(spelling, group)
    roles: dict[bytes, int] = {}
    for role, words in (
        (STARTER, language.starter),
        (PRONOUN, language.pronoun),
        (SAYING, language.saying),
        (GOES_ON, language.goes_on),
        (LABEL, language.label),
    ):
        for word in words.split():
            for spelling in _spellings(word):
                roles[spelling] = roles.get(spelling, 0) | role
    table = np.full((TABLE_SIZE + 1, 3), -1, np.int64)
    for word in sorted(classes | roles):
        value = fnv(word)
        slot = value % TABLE_SIZE
        while table[slot, 0] >= 0:
            slot = (slot + 1) % TABLE_SIZE
        table[slot] = value, classes.get(word, 0), roles.get(word, 0)
    table[TABLE_SIZE, 1] = language.ordinals
    return table


@compiled
def look_up(table, value):
    """The row of a hash in ``word_table()``, or -1."""
    slot = value & (TABLE_SIZE - 1)
    while table[slot, 0] >= 0:
        if table[slot, 0] == value:
            return slot
        slot = (slot + 1) & (TABLE_SIZE - 1)
    return -1
