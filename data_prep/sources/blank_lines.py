"""Blank lines: LF, then spaces, tabs or CR if any, then LF. Used by all that cut at them."""

from __future__ import annotations

import re
from typing import BinaryIO

from data_prep.sources.ranges import RecordEnds
from data_prep.sources.streams import CHUNK
from gpst.jit.compiled import compiled

_LF, _SPACE, _TAB, _CR = b"\n \t\r"
# a look-ahead, so that each of several blank lines matches
_BLANK_LINE = re.compile(rb"\n(?=([ \t\r]*\n))")
LOOK_BACK = 1 << 10  # a blank line that begins further before a place is not seen from there
WINDOW = 1 << 16


def last_blank_line_end(data: bytes) -> int:
    """After the last blank line, or 0."""
    window = WINDOW
    while True:  # from the end, in linear time
        start = max(len(data) - window, 0)
        end = max((match.end(1) for match in _BLANK_LINE.finditer(data, start)), default=0)
        if end or not start:
            return end
        window *= 2


def first_blank_line_end(file: BinaryIO, at: int) -> int | None:
    """The first place >= ``at`` right after a blank line, or None.

    The answer for a later place is never an earlier one, so that ranges fit together.
    """
    start = max(at - LOOK_BACK, 0)
    file.seek(start)
    carried = b""
    while chunk := file.read(CHUNK):
        data = carried + chunk
        for match in _BLANK_LINE.finditer(data):
            if start + match.end(1) >= at:
                return start + match.end(1)
        last = data.rfind(b"\n")
        is_open = last >= 0 and not data[last + 1 :].strip(b" \t\r")
        carried = b"\n" if is_open else b""  # the LF is enough of an open blank line
        start += len(data) - len(carried)
    return None


BLANK_LINE_ENDS = RecordEnds(first_blank_line_end, last_blank_line_end)


@compiled
def find_blocks(data, out):
    """Write (start, end) of each run of lines that are not blank to ``out``; returns the count."""
    count = line = 0
    start = -1
    blank = True
    for i in range(len(data) + 1):
        if i == len(data) or data[i] == _LF:
            if not blank and start < 0:
                start = line
            elif blank and start >= 0:
                out[count, 0], out[count, 1] = start, line
                count += 1
                start = -1
            line = i + 1
            blank = True
        elif data[i] != _SPACE and data[i] != _TAB and data[i] != _CR:
            blank = False
    if start >= 0:
        out[count, 0], out[count, 1] = start, len(data)
        count += 1
    return count
