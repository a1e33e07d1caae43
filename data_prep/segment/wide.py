"""Full stops of other scripts; compiled. They end sentences in a text of any language.

Chinese and Japanese write no space after a stop: a sentence ends right behind it and the quotes
and brackets that close, where a letter or an opening bracket follows, before which tokenizers cut.
"""

from __future__ import annotations

from data_prep.segment.scan import (
    CLOSER,
    DIGIT,
    LOWER,
    OPENER,
    UPPER,
    is_dash,
    next_word,
    space_length,
)
from gpst.jit.compiled import compiled_uncounted as compiled

LOWEST_LEAD = 0xD6  # the first bytes of all these stops, and of the ellipsis, are at least this


@compiled
def wide_stop_length(data, i, end):
    """Bytes of a stop at i that is no ASCII character, or 0."""
    lead = data[i]
    if lead < 0xE0:
        if i + 1 >= end:
            return 0
        second = data[i + 1]
        arabic = (lead == 0xD8 and second == 0x9F) or (lead == 0xDB and second == 0x94)
        return 2 if arabic or (lead == 0xD6 and second == 0x89) else 0  # Armenian
    if i + 2 >= end:
        return 0
    return 3 if _is_ideographic(data, i) or _is_southern(lead, data[i + 1], data[i + 2]) else 0


@compiled
def _is_ideographic(data, i):
    """The full stop of Chinese and Japanese, also half as wide, and the wide ! and ?."""
    lead, second, third = data[i], data[i + 1], data[i + 2]
    if lead == 0xE3:
        return second == 0x80 and third == 0x82
    if lead != 0xEF:
        return False
    return (second == 0xBC and (third == 0x81 or third == 0x9F)) or (
        second == 0xBD and third == 0xA1
    )


@compiled
def _is_southern(lead, second, third):
    """Danda and double danda (India), and the stops of Ethiopic, Burmese and Khmer."""
    if lead == 0xE0:
        return second == 0xA5 and (third == 0xA4 or third == 0xA5)
    if lead != 0xE1:
        return False
    ethiopic = second == 0x8D and third == 0xA2
    return ethiopic or (second == 0x81 and third == 0x8B) or (second == 0x9F and third == 0x94)


@compiled
def _closer_length(data, i, end, classes):
    """Bytes of a quote or bracket at i that closes, or 0."""
    if data[i] < 0x80:
        return 1 if classes[data[i]] == CLOSER else 0
    if i + 2 >= end:
        return 0
    lead, second, third = data[i], data[i + 1], data[i + 2]
    if lead == 0xE2:
        return 3 if second == 0x80 and (third == 0x99 or third == 0x9D) else 0
    if lead == 0xE3 and second == 0x80:  # the odd ones of these pairs close
        return 3 if third & 1 and (0x89 <= third <= 0x91 or 0x95 <= third <= 0x9B) else 0
    return 3 if lead == 0xEF and second == 0xBC and third == 0x89 else 0


@compiled
def begins(data, i, end, closed, classes):
    """A sentence can begin at i without a space before it.

    closed: a quotation ends there; Japanese goes on with small syllables after it ("... he said").
    """
    lead = data[i]
    if lead < 0x80:
        return classes[lead] in (UPPER, LOWER, DIGIT, OPENER)
    if i + 2 >= end:
        return False
    second, third = data[i + 1], data[i + 2]
    if 0xE4 <= lead <= 0xED:  # ideographs, Korean
        return True
    if lead == 0xE2:
        return second == 0x80 and (third == 0x98 or third == 0x9C)
    if lead == 0xEF:  # an opening bracket, digits, letters
        wide = second == 0xBC and (third == 0x88 or third >= 0x90)
        return wide and third != 0x9F and not 0x9A <= third <= 0xA0
    if lead != 0xE3:
        return False
    if second == 0x80:
        return third & 1 == 0 and (0x88 <= third <= 0x90 or 0x94 <= third <= 0x9A)
    if second == 0x81 or (second == 0x82 and third < 0x99):
        return not closed
    return (second == 0x82 and third > 0xA0) or (second == 0x83 and third < 0xBB)


@compiled
def wide_end(data, i, end, classes):
    """(where the rules go on after the stop at i that is no ASCII character, a sentence ends)."""
    ideographic, closed = data[i] == 0xE3 or data[i] == 0xEF, False
    while i < end:
        length = wide_stop_length(data, i, end)
        if length == 0:
            length = _closer_length(data, i, end, classes)
            if length == 0:
                break
            closed = True
        i += length
    if i == end:
        return i, False
    if space_length(data, i, end, classes) > 0:
        _, place, _ = next_word(data, i, end, classes)
        return i, place == end or not (data[place] in (44, 58, 59) or is_dash(data, place, end))
    return i, ideographic and begins(data, i, end, closed, classes)
