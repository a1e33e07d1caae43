"""What stands at a place of UTF-8 text: white space, stops, quotes, letters; compiled."""

from __future__ import annotations

from gpst.jit.compiled import compiled_uncounted as compiled

# classes of bytes
OTHER, SPACE, STOP, UPPER, LOWER, DIGIT, CLOSER, OPENER = range(8)
NOTHING = 8  # in place of a class: the document ends here
LONGEST_NOTE = 24  # bytes of a note in square brackets


@compiled
def space_length(data, i, end, classes):
    """Bytes of a white space at i, or 0: ASCII, no-break, and those of U+2000 and U+3000."""
    byte = data[i]
    if byte < 0x80:
        return 1 if classes[byte] == SPACE else 0
    if byte == 0xC2:
        return 2 if i + 1 < end and data[i + 1] == 0xA0 else 0
    if i + 2 >= end or data[i + 1] != 0x80:
        return 0
    third = data[i + 2]
    if byte == 0xE2:
        return 3 if third <= 0x8A or third == 0xAF else 0
    return 3 if byte == 0xE3 and third == 0x80 else 0


@compiled
def skip_spaces(data, i, end, classes):
    """The first place from i on that is not white space, or the end."""
    while i < end:
        length = space_length(data, i, end, classes)
        if length == 0:
            break
        i += length
    return i


@compiled
def quote_length(data, i, end):
    """Bytes of a typographic quote at i, or 0."""
    if i + 2 < end and data[i] == 0xE2 and data[i + 1] == 0x80:
        third = data[i + 2]
        return 3 if 0x98 <= third <= 0x9F or third == 0xB9 or third == 0xBA else 0
    if i + 1 < end and data[i] == 0xC2 and (data[i + 1] == 0xAB or data[i + 1] == 0xBB):
        return 2
    return 0


@compiled
def _opener_length(data, i, end):
    """Bytes of a quote, or of the Spanish signs that open questions and exclamations, or 0."""
    if data[i] == 0xC2 and i + 1 < end and (data[i + 1] == 0xBF or data[i + 1] == 0xA1):
        return 2
    return quote_length(data, i, end)


@compiled
def is_ellipsis(data, i, end):
    """The character of three dots is at i."""
    return data[i] == 0xE2 and i + 2 < end and data[i + 1] == 0x80 and data[i + 2] == 0xA6


@compiled
def is_dash(data, i, end):
    """An en or em dash is at i. After a stop it goes on; a hyphen begins: items, who speaks."""
    return (
        data[i] == 0xE2
        and i + 2 < end
        and data[i + 1] == 0x80
        and (data[i + 2] == 0x93 or data[i + 2] == 0x94)
    )


@compiled
def kind_of_letter(data, i, end, classes):
    """Kind of what begins at i: an ASCII or Latin-1 or Greek or Cyrillic letter, a digit, other."""
    kind = classes[data[i]]
    if kind in (UPPER, LOWER, DIGIT):
        return kind
    if i + 1 < end:
        lead, second = data[i], data[i + 1]
        if lead == 0xC3:
            return UPPER if second < 0x9F else LOWER
        if (lead == 0xCE and second >= 0x91 and second <= 0xA9) or (lead == 0xD0 and second < 0xB0):
            return UPPER
        if lead == 0xCE or lead == 0xCF or lead == 0xD0 or lead == 0xD1:
            return LOWER
    return OTHER


@compiled
def skip_smiley(data, i, end, classes):
    """The end of a smiley after a space at i, :) or ;-) and the like; i if none."""
    j = i + 1
    if j + 1 >= end or data[i] != 32 or (data[j] != 58 and data[j] != 59):  # : ;
        return i
    j += 1
    if data[j] == 45 and j + 1 < end:  # its nose
        j += 1
    if data[j] != 41 and data[j] != 40 and data[j] != 68 and data[j] != 80:  # ) ( D P
        return i
    while j < end and (data[j] == 41 or data[j] == 40):
        j += 1
    if j < end and (data[j] == 68 or data[j] == 80):
        j += 1
    return j if j == end or classes[data[j]] == SPACE else i


@compiled
def skip_notes(data, i, end, classes):
    """The end of notes in square brackets from i on: [2], [citation needed] [3]; i if none.

    They follow the stop of the sentence that they belong to, after a space or at once.
    """
    j = i + 1 if i < end and data[i] == 32 else i
    while j < end and data[j] == 91:
        k = j + 1
        while k < end and k - j < LONGEST_NOTE and _is_of_note(data[k], classes):
            k += 1
        if k >= end or data[k] != 93 or k == j + 1:
            break
        i = j = k + 1
        while j < end and data[j] == 32:
            j += 1
    return i


@compiled
def _is_of_note(byte, classes):
    kind = classes[byte]
    return kind in (DIGIT, LOWER) or byte in (32, 44, 45)


@compiled
def skip_stops(data, i, end, classes):
    """(end of the stops and closers from i, number of dots, has ! or ?, has a closer)."""
    dots, strong, closed = 0, False, False
    while i < end:
        byte = data[i]
        kind = classes[byte]
        if kind == STOP:
            if byte == 46:
                dots += 1
            else:
                strong = True
            i += 1
        elif kind == CLOSER:
            closed = True
            i += 1
        elif (kind == SPACE or byte == 0xC2 or byte == 0xE2) and _goes_on(data, i, end, classes):
            i += space_length(data, i, end, classes)
        elif is_ellipsis(data, i, end):
            dots += 3
            i += 3
        else:
            length = quote_length(data, i, end) if byte >= 0x80 else 0
            if length == 0:
                break
            closed = True
            i += length
    return i, dots, strong, closed


@compiled
def _goes_on(data, i, end, classes):
    """A white space at i is inside of stops: in an ellipsis ". . .", or before closers: ) ] '' ».

    What opens in German, »so«, has no space behind it.
    """
    j = i + space_length(data, i, end, classes)
    if j == i or j + 1 >= end:
        return False
    following = data[j]
    if following == 39:
        return data[j + 1] == 39
    if following == 0xC2:
        closes = j + 2 == end or data[j + 2] < 64 or space_length(data, j + 2, end, classes) > 0
        return data[j + 1] == 0xBB and closes
    return (following == 46 and data[i - 1] == 46) or following == 41 or following == 93


@compiled
def next_word(data, i, end, classes):
    """(kind, first letter's place, an opening quote or bracket stands before) after white space."""
    opened = False
    while i < end:
        byte = data[i]
        kind = classes[byte]
        if kind == SPACE:
            i += 1
        elif kind in (OPENER, CLOSER):
            opened = True
            i += 1
        elif byte >= 0x80 and space_length(data, i, end, classes) > 0:
            i += space_length(data, i, end, classes)
        elif byte >= 0x80 and _opener_length(data, i, end) > 0:
            opened = True
            i += _opener_length(data, i, end)
        else:
            return kind_of_letter(data, i, end, classes), i, opened
    return NOTHING, i, opened
