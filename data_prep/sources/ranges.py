"""Byte ranges of plain files, and chunks of streams, that end where a record ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from data_prep.batch import RawBatch, Recorder
from data_prep.sources.streams import CHUNK, BrokenStreamError, ByteStream

RANGE_BYTES = 16 << 20  # a plain file is cut into ranges of this size
BATCH_BYTES = 4 << 20
# a document longer than this is cut into several, so that memory stays bounded
MAX_DOCUMENT_BYTES = 8 << 20
# a line longer than this is not read whole (and so is not JSON)
MAX_LINE_BYTES = 128 << 20

# the place right after the last (or, with find, the first) record end in some bytes, or 0
EndFinder = Callable[[bytes], int]


def last_line_end(data: bytes) -> int:
    """After the last LF, or 0."""
    return data.rfind(b"\n") + 1


def last_blank_line_end(data: bytes) -> int:
    """After the last blank line, or 0."""
    plain, windows = data.rfind(b"\n\n"), data.rfind(b"\n\r\n")
    return max(plain + 2 if plain >= 0 else 0, windows + 3 if windows >= 0 else 0)


def first_end_from(file: BinaryIO, at: int, marks: tuple[bytes, ...]) -> int | None:
    """The first place >= ``at`` that has one of ``marks`` right before it; None: there is none."""
    longest = max(len(mark) for mark in marks)
    start = max(at - longest, 0)
    file.seek(start)
    held = b""
    while chunk := file.read(CHUNK):
        held += chunk
        found = []
        for mark in marks:
            place = held.find(mark, max(at - start - len(mark), 0))
            if place >= 0:
                found.append(start + place + len(mark))
        if found:
            return min(found)
        start += max(len(held) - longest, 0)
        held = held[-longest:]
    return None


class RangeStream:
    """The bytes [start, stop) of an open file."""

    def __init__(self, file: BinaryIO, start: int, stop: int | None):
        file.seek(start)
        self._file = file
        self._left = stop - start if stop is not None else None

    def read(self, size: int, /) -> bytes:
        """See ByteStream."""
        if self._left is not None:
            size = min(size, self._left)
        data = self._file.read(size)
        if self._left is not None:
            self._left -= len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_range(path: str, start: int, stop: int | None, marks: tuple[bytes, ...]):
    """(stream, its first byte's offset) for the records that begin in [start, stop), or None."""
    file = open(path, "rb")  # noqa: SIM115 (closed by the stream)
    first = first_end_from(file, start, marks) if start else 0
    if first is None or (stop is not None and first >= stop):
        file.close()
        return None
    last = first_end_from(file, stop, marks) if stop is not None else None
    return RangeStream(file, first, last), first


def chunks(
    stream: ByteStream, offset: int, find_end: EndFinder, size: int = BATCH_BYTES
) -> Iterator[tuple[int, bytes, bool]]:
    """Chunks of about ``size`` bytes that end where a record ends: (offset, bytes, is last).

    When the stream turns out to be broken, the whole records before come first, then the error.
    A record of more than MAX_LINE_BYTES is handed on in pieces that end anywhere.
    """
    held: list[bytes] = []
    length = 0
    while True:
        try:
            data = stream.read(CHUNK)
        except BrokenStreamError:
            joined = b"".join(held)
            yield offset, joined[: find_end(joined)], False  # the whole records before the damage
            raise
        if not data:
            break
        held.append(data)
        length += len(data)
        if length < size:
            continue
        joined = b"".join(held)
        held = [joined]
        end = find_end(joined)
        if end == 0 and length < MAX_LINE_BYTES:
            size = max(size, 2 * length)  # look again when twice as much is there: linear time
            continue
        end = end or length
        chunk, held = joined[:end], [joined[end:]]
        del joined  # it may be large, and the caller takes its time
        yield offset, chunk, False
        offset += end
        length -= end
        size = BATCH_BYTES
    yield offset, b"".join(held), True


def cut_long_documents(batch: RawBatch, recorder: Recorder) -> Iterator[RawBatch]:
    """The batch itself, or, when it has documents that are too long, batches of their pieces."""
    sizes = batch.ends - batch.starts
    if not (sizes > MAX_DOCUMENT_BYTES).any():
        yield batch
        return
    for number, size in enumerate(sizes.tolist()):
        first, stop = int(batch.starts[number]), int(batch.ends[number])
        place = batch.places[number : number + 1]
        if size > MAX_DOCUMENT_BYTES:
            recorder.count("documents_cut_too_long")
        while stop - first > MAX_DOCUMENT_BYTES:
            window = batch.data[first : first + MAX_DOCUMENT_BYTES + 4].tobytes()
            last = first + cut_point(window, MAX_DOCUMENT_BYTES)
            yield RawBatch(batch.data, np.array([first]), np.array([last]), batch.file, place)
            first = last
        yield RawBatch(batch.data, np.array([first]), np.array([stop]), batch.file, place)


def cut_point(data: bytes, limit: int = MAX_DOCUMENT_BYTES) -> int:
    """Where to cut too long a document: after a blank line, a line, a space, any character."""
    for mark in (b"\n\n", b"\n", b" "):
        place = data.rfind(mark, limit // 2, limit)
        if place > 0:
            return place + len(mark)
    place = limit
    while place > limit - 4 and data[place] & 0xC0 == 0x80:
        place -= 1
    return place
