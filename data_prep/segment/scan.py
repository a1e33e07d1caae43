"""Classes of bytes in UTF-8 text, and what begins at a byte of it; compiled."""

from __future__ import annotations

from gpst.jit.compiled import compiled

OTHER, SPACE, STOP, UPPER, LOWER, DIGIT, CLOSER, OPENER = range(8)
NOTHING = 8  # in place of a class: the document ends here


@compiled
def quote_length(data, i, end):
    """Bytes of a typographic quote at i, or 0."""
    if i + 2 < end and data[i] == 0xE2 and data[i + 1] == 0x80 and 0x98 <= data[i + 2] <= 0x9F:
        return 3
    if i + 1 < end and data[i] == 0xC2 and (data[i + 1] == 0xAB or data[i + 1] == 0xBB):
        return 2
    return 0


@compiled
def is_ellipsis(data, i, end):
    return data[i] == 0xE2 and i + 2 < end and data[i + 1] == 0x80 and data[i + 2] == 0xA6


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
        elif kind == SPACE and i + 1 < end and data[i + 1] == 46 and data[i - 1] == 46:
            i += 1  # an ellipsis with spaces: ". . ."
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
        elif byte >= 0x80 and quote_length(data, i, end) > 0:
            opened = True
            i += quote_length(data, i, end)
        else:
            return kind_of_letter(data, i, end, classes), i, opened
    return NOTHING, i, opened
