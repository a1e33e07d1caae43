"""The rules of the default segmenter at line ends, compiled."""

from __future__ import annotations

from data_prep.segment.scan import DIGIT, LOWER, SPACE, kind_of_letter, skip_spaces
from gpst.jit.compiled import compiled_uncounted as compiled

# wrapped text: a line of this length (bytes) without a stop probably goes on in the next one
WRAP_MIN, WRAP_MAX = 50, 120


@compiled
def _is_address(data, i, end, classes):
    """A web address is at i: letters and "://", or "www."."""
    first = i
    while i < end and i - first < 8 and classes[data[i]] == LOWER:
        i += 1
    if i + 2 >= end or i == first:
        return False
    if data[i] == 58:
        return data[i + 1] == 47 and data[i + 2] == 47
    www = data[first] == 119 and data[first + 1] == 119 and data[first + 2] == 119
    return i - first == 3 and www and data[i] == 46


@compiled
def _is_item(data, i, end, classes):
    """A mark of a list is at i: "- ", "* ", a bullet, "1. ", "2) "."""
    if i + 3 >= end:
        return False
    if data[i] == 0xE2 and data[i + 1] == 0x80:
        return data[i + 2] == 0xA2
    if data[i] == 45 or data[i] == 42:
        return data[i + 1] == 32
    first = i
    while i < first + 2 and classes[data[i]] == DIGIT:
        i += 1
    return i > first and (data[i] == 46 or data[i] == 41) and data[i + 1] == 32


@compiled
def line_ends(data, line, i, end, classes):
    """Whether the line break at i ends a sentence. ``line`` is where the line starts.

    A blank line always does; so does the end of a line before an item of a list, and between two
    web addresses. A line that is too short or too long to be wrapped text ends one as well, unless
    the next one starts with a small letter.
    """
    j = i + 1
    while j < end and classes[data[j]] == SPACE:
        if data[j] == 10:
            return True
        j += 1
    if j >= end:
        return False
    if kind_of_letter(data, j, end, classes) == LOWER:
        first = skip_spaces(data, line, i, classes)  # the list may be indented
        return _is_address(data, j, end, classes) and _is_address(data, first, i, classes)
    length = i - line
    return length < WRAP_MIN or length > WRAP_MAX or _is_item(data, j, end, classes)
