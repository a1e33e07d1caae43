"""The rules of the default segmenter over UTF-8 bytes, compiled; linear time on any input.

A cut is considered at a stop (``. ! ?`` and the ellipsis, with the quotes and brackets that close
after it) before white space, and at line ends. Every cut falls right before white space.
"""

from __future__ import annotations

import numpy as np

from data_prep.segment.abbreviations import LATIN, MAYBE, NUMBERED, TITLE, look_up
from data_prep.segment.scan import (
    CLOSER,
    DIGIT,
    LOWER,
    NOTHING,
    OPENER,
    SPACE,
    STOP,
    UPPER,
    is_ellipsis,
    kind_of_letter,
    next_word,
    skip_stops,
)
from gpst.jit.compiled import compiled

LONGEST_WORD = 24  # bytes looked at before a stop, so that a scan back is bounded
# wrapped text: a line of this length (bytes) without a stop probably goes on in the next one
WRAP_MIN, WRAP_MAX = 50, 120
BLOCK = 32  # bytes looked at at a time


@compiled
def _is_starter(data, i, end, classes, table):
    """The word at i often starts sentences."""
    value, first = 2166136261, i
    while i < end and i - first < LONGEST_WORD:
        byte = data[i]
        kind = classes[byte]
        if kind == UPPER:
            byte += 32
        elif kind != LOWER:
            break
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
        i += 1
    if i == first + 1 and data[first] != 73 and data[first] != 65:  # a letter alone, not I or A
        return False
    slot = look_up(table, value)
    return slot >= 0 and table[slot, 2] == 1


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
        first -= 1
    if stop - first >= LONGEST_WORD:
        return first, -1, False
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
def _is_list_number(data, start, first, stop, classes):
    """The word before a stop is a number or a letter that opens a sentence: "1. Preheat it"."""
    i = start
    while i < first and classes[data[i]] in (SPACE, OPENER):
        i += 1
    if i < first or stop == first or stop - first > 3:
        return False
    while i < stop and classes[data[i]] == DIGIT:
        i += 1
    return i == stop or stop - first == 1


@compiled
def _dot_ends(data, start, stop, after, end, closed, classes, table):
    """Whether a single stop at ``stop``, with white space at ``after``, ends a sentence."""
    kind, place, opened = next_word(data, after, end, classes)
    if kind == NOTHING:
        return True
    if data[place] in (44, 58, 59):  # , : ; cannot start a sentence (smileys neither)
        return False
    first, group, inner = _word_before(data, start, stop, classes, table)
    if _is_list_number(data, start, first, stop, classes):
        return False
    if group == LATIN or (group == TITLE and not closed):
        return False
    starter = kind == UPPER and _is_starter(data, place, end, classes, table)
    if group == NUMBERED and not closed:
        if kind == DIGIT:
            return False
        return kind == UPPER or opened
    length = stop - first
    if length == 1 and classes[data[first]] == UPPER and not closed:
        return starter or data[first] == 73
    if group == MAYBE or (inner and group == 0 and _is_acronym(data, first, stop, classes)):
        return starter
    if kind == LOWER:
        return not closed and not opened and length > 3 and group == 0 and not inner
    return True


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
def _run_ends(data, dots, strong, closed, after, end, classes):
    """Whether a run with ! or ?, or an ellipsis, ends a sentence."""
    kind, place, _ = next_word(data, after, end, classes)
    if kind == NOTHING:
        return True
    if data[place] in (44, 58, 59):  # , : ; cannot start a sentence (smileys neither)
        return False
    if strong:
        return kind != LOWER or not closed
    return kind == UPPER


@compiled
def _line_ends(data, line, i, end, classes):
    """Whether the line break at i ends a sentence. ``line`` is where the line starts.

    A blank line always does; so does a line that is too short or too long to be wrapped text,
    unless the next one starts with a small letter.
    """
    j = i + 1
    while j < end and classes[data[j]] == SPACE:
        if data[j] == 10:
            return True
        j += 1
    if j >= end:
        return False
    kind = kind_of_letter(data, j, end, classes)
    if kind == LOWER:
        return False
    length = i - line
    return length < WRAP_MIN or length > WRAP_MAX


@compiled
def _stop_ends(data, start, i, after, dots, strong, closed, end, classes, table):
    """Whether the sentence from ``start`` ends with the stops from i to ``after``."""
    if after >= end or classes[data[after]] != SPACE:
        return False
    if dots == 1 and not strong:
        return _dot_ends(data, start, i, after, end, closed, classes, table)
    return _run_ends(data, dots, strong, closed, after, end, classes)


@compiled
def _is_pause(byte):
    """Stops, line ends, and the first byte of the ellipsis."""
    return (byte == 46) | (byte == 33) | (byte == 63) | (byte == 10) | (byte == 0xE2)


@compiled
def _next_pause(data, i, end):
    """The first place from i on where the rules look closer, or the end."""
    while i + BLOCK <= end:  # without an exit inside, so that it becomes vector code
        part, found = data[i : i + BLOCK], np.uint8(0)
        for k in range(BLOCK):
            found |= np.uint8(_is_pause(part[k]))
        if found:
            break
        i += BLOCK
    while i < end and not _is_pause(data[i]):
        i += 1
    return i


@compiled
def cut_document(data, start, end, out, count, classes, table):
    """Append the sentence ends of data[start:end] to ``out`` from place ``count`` on.

    Returns the new count. The document's own end is always the last one.
    """
    first = count
    last = line = i = start  # starts of the open sentence and of the line; the place looked at
    seen = False  # the open sentence has something but white space
    while i < end:
        if not seen:
            while i < end and classes[data[i]] == SPACE:
                i += 1
                if data[i - 1] == 10:
                    line = i
            seen = i < end
        i = _next_pause(data, i, end)
        if i == end:
            break
        if data[i] == 10:
            if _line_ends(data, line, i, end, classes):
                cut = i
                while classes[data[cut - 1]] == SPACE:  # the white space at the line's end
                    cut -= 1
                out[count] = last = cut
                count += 1
                seen = False
            i += 1
            line = i
        elif classes[data[i]] == STOP or is_ellipsis(data, i, end):
            after, dots, strong, closed = skip_stops(data, i, end, classes)
            if _stop_ends(data, last, i, after, dots, strong, closed, end, classes, table):
                out[count] = last = after
                count += 1
                seen = False
            i = after
        else:
            i += 1
    if seen or count == first:
        count += 1
    out[count - 1] = end
    return count


@compiled
def cut_documents(data, document_ends, out, sentences, classes, table):
    """``cut_document`` for each document; ``sentences`` (D,) gets their ends in sentences."""
    count = start = 0
    for d in range(len(document_ends)):
        count = cut_document(data, start, document_ends[d], out, count, classes, table)
        start = document_ends[d]
        sentences[d] = count
    return count
