"""Documents to sentences: the loop over stops and line ends, compiled; linear time on any input."""

from __future__ import annotations

import numpy as np

from data_prep.segment.lines import line_ends
from data_prep.segment.rules import stop_ends
from data_prep.segment.scan import (
    SPACE,
    STOP,
    is_ellipsis,
    skip_notes,
    skip_smiley,
    skip_stops,
    space_length,
)
from data_prep.segment.wide import LOWEST_LEAD, begins, wide_end, wide_stop_length
from gpst.jit.compiled import compiled_uncounted as compiled

BLOCK = 32  # bytes looked at at a time


@compiled
def _may_pause(byte):
    """Stops and line ends, and what stops of other scripts and the ellipsis begin with."""
    return (byte == 46) | (byte == 33) | (byte == 63) | (byte == 10) | (byte >= LOWEST_LEAD)


@compiled
def _next_pause(data, i, end):
    """The first place from i on where the rules look closer, or the end."""
    while i < end:
        while i + BLOCK <= end:  # without an exit inside, so that it becomes vector code
            part, found = data[i : i + BLOCK], np.uint8(0)
            for k in range(BLOCK):
                found |= np.uint8(_may_pause(part[k]))
            if found:
                break
            i += BLOCK
        last = min(i + BLOCK, end)
        while i < last:
            byte = data[i]
            if byte < LOWEST_LEAD:
                if _may_pause(byte):
                    return i
                i += 1
            elif is_ellipsis(data, i, end) or wide_stop_length(data, i, end) > 0:
                return i
            else:
                i += 3 if byte >= 0xE0 else 2  # no stop inside of a character
    return end


@compiled
def _end_after(data, last, i, end, classes, table):
    """(where the rules go on after the stops at i, whether a sentence ends there).

    last: where the open sentence starts.
    """
    after, dots, strong, closed = skip_stops(data, i, end, classes)
    behind = skip_notes(data, after, end, classes)
    if behind == after:
        behind = skip_smiley(data, after, end, classes)
    if behind >= end:
        return after, False
    if space_length(data, behind, end, classes) == 0:  # Japanese writes narrow ! and ? as well
        return after, strong and data[behind] >= 0xE3 and begins(data, after, end, closed, classes)
    closed |= behind > after  # abbreviations have no notes
    if stop_ends(data, last, i, behind, dots, strong, closed, end, classes, table):
        return behind, True
    return after, False


@compiled
def _cut_document(data, start, end, out, count, classes, table):
    """Append the sentence ends of data[start:end] to ``out`` from place ``count`` on.

    Returns the new count. The document's own end is always the last one.
    """
    first = count
    last = line = i = start  # starts of the open sentence and of the line; the place looked at
    seen = False  # the open sentence has something but white space
    while i < end:
        if not seen:
            while i < end:
                length = space_length(data, i, end, classes)
                if length == 0:
                    seen = True
                    break
                i += length
                if data[i - 1] == 10:
                    line = i
        i = _next_pause(data, i, end)
        if i == end:
            break
        if data[i] == 10:
            if line_ends(data, line, i, end, classes):
                cut = i
                while classes[data[cut - 1]] == SPACE:  # the white space at the line's end
                    cut -= 1
                out[count] = last = cut
                count += 1
                seen = False
            i += 1
            line = i
        elif classes[data[i]] == STOP or is_ellipsis(data, i, end):
            i, ends = _end_after(data, last, i, end, classes, table)
            if ends:
                out[count] = last = i
                count += 1
                seen = False
        else:
            i, ends = wide_end(data, i, end, classes)
            if ends:
                out[count] = last = i
                count += 1
                seen = False
    if seen or count == first:
        count += 1
    out[count - 1] = end
    return count


@compiled
def cut_documents(data, document_ends, out, sentences, classes, table):
    """Write the sentence ends of documents to ``out``, and to ``sentences`` (D,) their number."""
    count = start = np.int64(0)  # a literal has a type of its own: all would be compiled twice
    for d in range(len(document_ends)):
        count = _cut_document(data, start, document_ends[d], out, count, classes, table)
        start = document_ends[d]
        sentences[d] = count
    return count
