"""Raw bytes of documents to clean UTF-8 text, compiled.

- a byte order mark at a document's start is dropped
- CR LF, CR, vertical tab, form feed, U+0085, U+2028 and U+2029 become LF
- NUL and the other control characters (C0, DEL, C1) are dropped, tabs are kept
- what is not valid UTF-8 becomes U+FFFD, one for each maximal subpart, as Python decodes it
- white space (ASCII) at both ends of a document is dropped
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.text.batch import RawBatch
from gpst.jit.compiled import compiled

BLOCK = 64  # bytes scanned at a time


@dataclass(frozen=True)
class CleanBatch:
    """Clean documents, one after another.

    data: (n,) uint8, valid UTF-8. ends: (D,) int64, exclusive; a document may be empty.
    num_bad: (D,) int64, sequences that were not UTF-8. num_controls: control characters dropped.
    """

    data: np.ndarray
    ends: np.ndarray
    num_bad: np.ndarray
    num_controls: int


@compiled
def _sequence(data, i, end):
    """(bytes of the sequence at i, it is valid UTF-8). An invalid one is a maximal subpart."""
    lead = data[i]
    if lead < 0x80:
        return 1, True
    if lead < 0xC2 or lead > 0xF4:
        return 1, False
    length = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
    low, high = 0x80, 0xBF  # bounds of the second byte: no overlong forms, no surrogates
    if lead == 0xE0:
        low = 0xA0
    elif lead == 0xED:
        high = 0x9F
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F
    for k in range(1, length):
        if i + k >= end or data[i + k] < low or data[i + k] > high:
            return k, False
        low, high = 0x80, 0xBF
    return length, True


@compiled
def _is_plain(data, start, end):
    """Only printable ASCII, tabs and newlines.

    No early exit, and nothing wider than a byte: the loop becomes vector code.
    """
    part, other = data[start:end], np.uint8(0)
    for k in range(len(part)):
        byte = part[k]
        outside = np.uint8(np.uint8(byte - np.uint8(32)) > np.uint8(94))
        other |= outside & np.uint8(byte != np.uint8(10)) & np.uint8(byte != np.uint8(9))
    return other == 0


@compiled
def _ascii_end(data, i, end):
    """The end of the run of printable ASCII that begins at i."""
    while i + BLOCK <= end:  # without an exit inside, so that it becomes vector code
        part, other = data[i : i + BLOCK], np.uint8(0)
        for k in range(BLOCK):
            other |= np.uint8(np.uint8(part[k] - np.uint8(32)) > np.uint8(94))
        if other:
            break
        i += BLOCK
    while i < end and 32 <= data[i] < 127:
        i += 1
    return i


@compiled
def _count_bad(data, start, end):
    bad, i = 0, start
    while i < end:
        i = _ascii_end(data, i, end)
        if i < end:
            length, valid = _sequence(data, i, end)
            bad += not valid
            i += length
    return bad


@compiled
def _clean_one(data, i, end, out, at):
    """Clean data[i:end] into out[at:]; returns (new end, control characters dropped)."""
    controls = 0
    if end - i >= 3 and data[i] == 0xEF and data[i + 1] == 0xBB and data[i + 2] == 0xBF:
        i += 3
    while i < end:
        stop = _ascii_end(data, i, end)
        if stop > i:
            out[at : at + stop - i] = data[i:stop]
            at += stop - i
            i = stop
            continue
        byte = data[i]
        if byte == 10 or byte == 9:
            out[at] = byte
            at += 1
            i += 1
            continue
        if byte < 128:
            if byte == 13 and i + 1 < end and data[i + 1] == 10:
                pass  # the LF that follows stays
            elif 11 <= byte <= 13:
                out[at] = 10
                at += 1
            else:
                controls += 1
            i += 1
            continue
        length, valid = _sequence(data, i, end)
        if not valid:
            out[at], out[at + 1], out[at + 2] = 0xEF, 0xBF, 0xBD
            at += 3
        elif byte == 0xC2 and data[i + 1] < 0xA0:
            if data[i + 1] == 0x85:
                out[at] = 10
                at += 1
            else:
                controls += 1
        elif byte == 0xE2 and data[i + 1] == 0x80 and (data[i + 2] | 1) == 0xA9:
            out[at] = 10
            at += 1
        else:
            for k in range(length):
                out[at + k] = data[i + k]
            at += length
        i += length
    return at, controls


@compiled
def _is_space(byte):
    return byte == 32 or byte == 10 or byte == 9


@compiled
def _strip_left(out, start, at):
    """Drop white space from out[start:at] in place at the left; returns the new end."""
    first = start
    while first < at and _is_space(out[first]):
        first += 1
    if first > start:
        for i in range(first, at):
            out[start + i - first] = out[i]
    return at - (first - start)


@compiled
def _count_all(data, starts, ends, plain, bad):
    for d in range(len(starts)):
        plain[d] = _is_plain(data, starts[d], ends[d])
        bad[d] = 0 if plain[d] else _count_bad(data, starts[d], ends[d])


@compiled
def _clean_all(data, starts, ends, plain, out, out_ends):
    """Clean every document into ``out``; returns the control characters dropped."""
    at = controls = 0
    for d in range(len(starts)):
        begin, first, last = at, starts[d], ends[d]
        if plain[d]:
            while first < last and _is_space(data[first]):
                first += 1
            out[at : at + last - first] = data[first:last]
            at += last - first
        else:
            at, dropped = _clean_one(data, first, last, out, at)
            controls += dropped
            at = _strip_left(out, begin, at)
        while at > begin and _is_space(out[at - 1]):
            at -= 1
        out_ends[d] = at
    return controls


def normalise(batch: RawBatch) -> CleanBatch:
    """Clean the documents of a batch; a document that holds nothing comes out empty."""
    size = len(batch.starts)
    plain, bad, ends = np.empty(size, np.bool_), np.empty(size, np.int64), np.empty(size, np.int64)
    _count_all(batch.data, batch.starts, batch.ends, plain, bad)
    room = int((batch.ends - batch.starts).sum() + 2 * bad.sum())
    out = np.empty(room, np.uint8)
    controls = _clean_all(batch.data, batch.starts, batch.ends, plain, out, ends)
    total = int(ends[-1]) if size else 0
    return CleanBatch(out[:total], ends, bad, int(controls))
