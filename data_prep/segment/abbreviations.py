"""Word lists of the ``fast`` segmenter and the hash table that compiled code looks them up in.

All words are lower case and without their final stop. A word has one class:

- TITLE: a name follows; never the end of a sentence (Mr, Dr, Gen)
- NUMBERED: a number follows (No, p, Fig); otherwise an ordinary word
- LATIN: never the end of a sentence (e.g, i.e, cf)
- MAYBE: the end only when a word follows that often starts sentences (Inc, Jr, p.m, Jan)
- STARTER, beside these: a word that often starts sentences (The, He, In)
"""

from __future__ import annotations

import numpy as np

from gpst.jit.compiled import compiled

TITLE, NUMBERED, LATIN, MAYBE = 1, 2, 3, 4

_TITLE = """
mr mrs ms dr prof gen col maj capt lt sgt cpl pvt adm cmdr brig rev hon fr msgr sen rep gov pres
supt det messrs mme mlle amb sec'y insp mt ste pfc mdm sr dra sra srta
"""
_NUMBERED = """
no nos p pp fig figs vol vols art ch chap sect par para eq eqs ver pt op nr tel ext sec
"""
_LATIN = """
e.g i.e eg ie cf viz vs v approx ca incl esp resp i.a aka p.s ps drs c.f
"""
_MAYBE = """
inc co corp ltd bros llc plc jr sr esq phd ph.d m.d b.a m.a b.s m.s d.d.s etc dept univ assn
assoc jan feb mar apr jun jul aug sept sep oct nov dec tue tues wed thu thurs fri a.m p.m u.s
u.k u.n u.s.a e.u d.c l.a n.y u.s.s.r ave blvd rd ln hwy pl sq bldg ariz ark calif colo conn del
fla ga ind kan kans ky mich minn mo mont neb nev okla pa penn tenn tex va vt wis wyo ont que est
avg ed eds trans rev ft oz lb lbs yr yrs mos cu km mi gal mph a.d b.c b.c.e c.e a.k.a s.p.a n.v
a.g g.m.b.h gmbh n.a p.o r.i n.j n.h n.c s.c s.d n.d n.m w.va int'l nat'l gov't maj.gen lt.gov
lt.col al st ft hrs
"""
_STARTER = """
the a an this that these those it its he she they we i you his her their our my your there here
in on at by for from with as of to after before since when while where why how what who which if
but and or so yet nor because although though however moreover furthermore meanwhile also then
thus therefore still now today yesterday tomorrow some many most all both each every no not one
two another other others such more few several first second finally later once again even just
only under over during through despite without about according until unless is are was were do
does did has have had can could will would should may might let please mr mrs ms dr analysts
officials president critics traders shares sales
"""

STARTER_WORDS = frozenset(_STARTER.split())
TABLE_SIZE = 2048
_PRIME, _OFFSET, _MASK = 16777619, 2166136261, 0xFFFFFFFF


def fnv(word: bytes) -> int:
    """The 32-bit FNV-1a hash; the compiled code has the same."""
    value = _OFFSET
    for byte in word:
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def word_table() -> np.ndarray:
    """(TABLE_SIZE, 3) int64: hash, class as an abbreviation (0 none), 1 for a starter.

    Open addressing with linear probing; an empty slot has hash -1.
    """
    table = np.full((TABLE_SIZE, 3), -1, np.int64)
    groups = ((TITLE, _TITLE), (NUMBERED, _NUMBERED), (LATIN, _LATIN), (MAYBE, _MAYBE))
    classes: dict[str, int] = {}
    for group, words in groups:
        for word in words.split():
            classes.setdefault(word, group)
    for word in sorted(set(classes) | STARTER_WORDS):
        value = fnv(word.encode())
        slot = value % TABLE_SIZE
        while table[slot, 0] >= 0:
            slot = (slot + 1) % TABLE_SIZE
        table[slot] = value, classes.get(word, 0), word in STARTER_WORDS
    return table


@compiled
def look_up(table, value):
    """The row of a hash in ``word_table()``, or -1."""
    slot = value % TABLE_SIZE
    while table[slot, 0] >= 0:
        if table[slot, 0] == value:
            return slot
        slot = (slot + 1) % TABLE_SIZE
    return -1
