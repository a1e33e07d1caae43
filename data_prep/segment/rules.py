"""The rules of the default segmenter at stops, compiled; each looks at a bounded number of bytes.

A stop is ``. ! ?`` or the ellipsis, with the quotes, brackets, smileys and notes that follow it.
"""

from __future__ import annotations

from data_prep.segment.scan import (
    CLOSER,
    DIGIT,
    LOWER,
    NOTHING,
    OPENER,
    OTHER,
    SPACE,
    UPPER,
    is_dash,
    kind_of_letter,
    next_word,
    skip_spaces,
    space_length,
)
from data_prep.segment.words import (
    ENDING,
    GOES_ON,
    LABEL,
    LATIN,
    MAYBE,
    NUMBERED,
    PRONOUN,
    SAYING,
    STARTER,
    TABLE_SIZE,
    TITLE,
    look_up,
)
from gpst.jit.compiled import compiled_uncounted as compiled

LONGEST_WORD = 24  # bytes looked at before and after a stop, so that scans are bounded
LONGEST_LISTED = 12  # bytes; no abbreviation is longer


@compiled
def _word_at(data, i, end, classes, table):
    """(end, roles) of the word at i; see ``words``."""
    value, first = 2166136261, i
    while i < end and i - first < LONGEST_WORD:
        byte = data[i]
        kind = classes[byte]
        if kind == UPPER:
            byte += 32
        elif kind != LOWER and (byte < 0xC3 or byte == 0xE2) and (byte < 0x80 or byte >= 0xC0):
            break
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
        i += 1
    if i - first <= 2 and _is_letter_alone(data, first, i, end):
        return i, 0
    slot = look_up(table, value)
    return i, (table[slot, 2] if slot >= 0 else 0)


@compiled
def _is_letter_alone(data, first, after, end):
    """One letter with a stop, as in J. A. Roe; or a Latin one that is no word (not I, A, i)."""
    if after < end and data[after] == 46:
        return after == first + 1 or data[first] >= 0x80
    return after == first + 1 and data[first] != 73 and data[first] != 65 and data[first] != 105


@compiled
def _word_before(data, start, stop, classes, table):
    """(first byte, class as an abbreviation, has an inner stop) of the word before a stop.

    The class is 0 for an ordinary word, -1 when the word is longer than any abbreviation.
    """
    first = stop
    while first > start and stop - first < LONGEST_WORD:
        byte = data[first - 1]
        kind = classes[byte]
        if kind in (SPACE, OPENER, CLOSER) or byte in (44, 45, 47, 59):  # , - / ;
            break
        if byte == 0x94 and first - 3 >= start and data[first - 3] == 0xE2:  # an em dash
            break
        if byte >= 0x80 and _is_wide_space(data, first, start, classes):  # as in z.\u00a0B.
            break
        first -= 1
    if stop - first >= LONGEST_WORD:
        return first, -1, False
    if stop - first > LONGEST_LISTED:
        return first, 0, False
    value, inner = 2166136261, False
    for i in range(first, stop):
        byte = data[i]
        if classes[byte] == UPPER:
            byte += 32
        inner |= byte == 46
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    slot = look_up(table, value)
    return first, (table[slot, 1] if slot >= 0 else 0), inner


@compiled
def _is_wide_space(data, end, start, classes):
    """A white space of two or three bytes ends at ``end``."""
    for length in (2, 3):
        i = end - length
        if i >= start and data[i] >= 0xC2 and space_length(data, i, end, classes) == length:
            return True
    return False


@compiled
def _is_list_number(data, start, first, stop, classes, table):
    """The word before a stop numbers what follows: "1. Preheat it", "2.1. Method", "Figure 1."."""
    length = stop - first
    if length == 0 or length > 6:
        return False
    i = first
    while i < stop and (classes[data[i]] == DIGIT or data[i] == 46):
        i += 1
    if i < stop:
        if length > 1:
            return False
    elif length > 3 and data[first + 1] != 46:
        return False
    i = start
    while i < first and classes[data[i]] in (SPACE, OPENER):
        i += 1
    if i == first:
        return True
    after, roles = _word_at(data, i, first, classes, table)
    return roles & LABEL != 0 and skip_spaces(data, after, first, classes) == first


@compiled
def _is_acronym(data, first, stop, classes):
    """Letters and stops in turn: U.S, p.m, Ph.D."""
    run = 0
    for i in range(first, stop):
        run = 0 if data[i] == 46 else run + 1
        if run > 2 or (run and classes[data[i]] not in (UPPER, LOWER)):
            return False
    return True


@compiled
def _is_number(data, first, stop):
    while first < stop and 48 <= data[first] <= 57:
        first += 1
    return first == stop


@compiled
def _cannot_start(data, place, end):
    """What is at ``place`` belongs to what is before it: , : ; or a dash; not the quote ,,."""
    if data[place] == 44:
        return place + 1 >= end or data[place + 1] != 44
    return data[place] in (58, 59) or is_dash(data, place, end)


@compiled
def _dot_ends(data, start, stop, after, end, closed, classes, table):
    """Whether a single stop at ``stop``, with white space at ``after``, ends a sentence."""
    kind, place, opened = next_word(data, after, end, classes)
    if kind == NOTHING:
        return True
    if _cannot_start(data, place, end):
        return False
    first, group, inner = _word_before(data, start, stop, classes, table)
    if _is_list_number(data, start, first, stop, classes, table):
        return False
    if group == LATIN or (group == TITLE and not closed):
        return False
    length = stop - first
    letter = OTHER
    if length == 1 or (length == 2 and data[first] >= 0x80):
        letter = kind_of_letter(data, first, stop, classes)
    if group == NUMBERED and not closed and letter != UPPER:  # (p. 5), but J. P. Roe
        if kind == DIGIT:
            return False
        return kind == UPPER or opened
    if group == ENDING:
        return kind != LOWER
    if length > 3 and group == 0 and not inner and kind != LOWER:
        return True
    roles = _word_at(data, place, end, classes, table)[1] if kind in (UPPER, LOWER) else 0
    starter = roles & STARTER != 0
    if table[TABLE_SIZE, 1] and length <= 2 and kind == UPPER and _is_number(data, first, stop):
        return starter
    if not closed and group in (0, NUMBERED):
        if letter == UPPER:
            is_i = data[first] == 73 and (first < start + 2 or data[first - 2] != 46)  # not J. I.
            return kind == UPPER and (starter or is_i)
        if letter == LOWER:  # (b. May 1950), c. 1640; plan b. The
            return kind == UPPER and starter and roles & GOES_ON == 0
    if group == MAYBE or (inner and group == 0 and _is_acronym(data, first, stop, classes)):
        return kind == UPPER and starter
    if kind == LOWER:
        if closed or group != 0 or inner:
            return False
        return length > 3 or starter
    return True


@compiled
def _is_said(data, place, end, classes, table):
    """Who speaks follows a quotation: "Why?" he asked. "Stop!" Pete said."""
    after, roles = _word_at(data, place, end, classes, table)
    if roles & SAYING:
        return True
    if (roles & STARTER and roles & PRONOUN == 0) or after + 1 >= end or data[after] != 32:
        return False
    return _word_at(data, after + 1, end, classes, table)[1] & SAYING != 0


@compiled
def _run_ends(data, strong, closed, after, end, classes, table):
    """Whether a run with ! or ?, or an ellipsis, ends a sentence."""
    kind, place, opened = next_word(data, after, end, classes)
    if kind == NOTHING:
        return True
    if _cannot_start(data, place, end):
        return False
    if closed and not opened and kind == UPPER and _is_said(data, place, end, classes, table):
        return False
    if not strong:
        return kind == UPPER
    if kind != LOWER:
        return True
    return not closed and _word_at(data, place, end, classes, table)[1] & GOES_ON == 0


@compiled
def stop_ends(data, start, i, after, dots, strong, closed, end, classes, table):
    """Whether the sentence from ``start`` ends with the stops from i to ``after``."""
    if dots == 1 and not strong:
        return _dot_ends(data, start, i, after, end, closed, classes, table)
    return _run_ends(data, strong, closed, after, end, classes, table)
