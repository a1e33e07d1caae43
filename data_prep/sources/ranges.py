"""Byte ranges of plain files, and chunks of streams, that end where a record ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from data_prep.sources.base import DroppedRecord, InputFile, Part, Piece, SpooledFile
from data_prep.sources.long_documents import cut_point
from data_prep.sources.opening import TextStream, is_plain_text, open_text
from data_prep.sources.options import SourceOptions
from data_prep.sources.streams import (
    CHUNK,
    BrokenStreamError,
    ByteStream,
    compression_of,
    text_weight,
)
from data_prep.text.batch import RawBatch, Recorder
from data_prep.text.encodings import UTF8

RANGE_BYTES = 16 << 20  # a plain file is cut into ranges of this size
BATCH_BYTES = 2 << 20
# a compressed file with more text than this is cut into pieces while it is read
STREAM_BYTES = 64 << 20
PIECE_BYTES = 16 << 20
# a longer line is not read as a whole, and so is not parsed as JSON
MAX_LINE_BYTES = 64 << 20

# the place right after the last record end in some bytes, or 0
EndFinder = Callable[[bytes], int]


class RecordEnds(NamedTuple):
    """Finds where records end.

    first: (file, place) -> the first end at the place or later, or None; it must not decrease as
    the place grows. last: the last end in some bytes, or 0. lines: a record is a line, which is
    useless unless complete.
    """

    first: Callable[[BinaryIO, int], int | None]
    last: EndFinder
    lines: bool = False


def last_line_end(data: bytes) -> int:
    """After the last LF, or 0."""
    return data.rfind(b"\n") + 1


def first_line_end(file: BinaryIO, at: int) -> int | None:
    """After the first LF that ends at ``at`` or later, or None."""
    start = max(at - 1, 0)
    file.seek(start)
    while chunk := file.read(CHUNK):
        place = chunk.find(b"\n") + 1
        if place:
            return start + place
        start += len(chunk)
    return None


LINE_ENDS = RecordEnds(first_line_end, last_line_end, lines=True)


class RangeStream:
    """The bytes [start, stop) of an open file."""

    def __init__(self, file: BinaryIO, start: int, stop: int | None):
        file.seek(start)
        self._file = file
        self._stop, self._left = stop, None if stop is None else stop - start

    def read(self, size: int, /) -> bytes:
        """See ByteStream."""
        if self._left is not None:
            size = min(size, self._left)
        data = self._file.read(size)
        if self._left is not None:
            if self._left and size and not data:
                detail = f"cut short while it was read, {self._left} bytes before byte {self._stop}"
                raise BrokenStreamError("truncated_file", detail)
            self._left -= len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_range(path: str, start: int, stop: int | None, ends: RecordEnds):
    """(stream, its first byte's offset) for the records that begin in [start, stop), or None."""
    file = open(path, "rb")  # noqa: SIM115 (closed by the stream)
    first = ends.first(file, start) if start else 0
    if first is None or (stop is not None and first >= stop):
        file.close()
        return None
    last = ends.first(file, stop) if stop is not None else None
    return RangeStream(file, first, last), first


def chunks(
    stream: ByteStream,
    offset: int,
    ends: RecordEnds,
    size: int,
    too_long: Callable[[int, str], None],
) -> Iterator[tuple[int, bytes]]:
    """Chunks of about ``size`` bytes that end where a record ends: (offset, bytes).

    When the stream is broken, the complete records before the damage come first, then the error.
    A line of more than MAX_LINE_BYTES is skipped and reported to ``too_long``; other records of
    that size are yielded in pieces that end between characters.
    """
    buffers: list[bytes] = []
    length, wanted = 0, size
    while True:
        try:
            data = stream.read(CHUNK)
        except BrokenStreamError:
            joined = b"".join(buffers)
            yield offset, joined[: ends.last(joined)]  # the whole records before the damage
            raise
        if not data:
            break
        buffers.append(data)
        length += len(data)
        if length < wanted:
            continue
        joined = b"".join(buffers)
        buffers = [joined]
        end = ends.last(joined)
        if end == 0 and length < MAX_LINE_BYTES:
            # search again after twice as many bytes: linear time
            wanted = min(max(wanted, 2 * length), MAX_LINE_BYTES)
            continue
        if end == 0 and ends.lines:
            too_long(offset, f"a line of more than {MAX_LINE_BYTES} bytes")
            del joined
            buffers.clear()
            passed, rest = _to_line_end(stream)
            offset, buffers = offset + length + passed, [rest]
            length, wanted = len(rest), size
            continue
        end = end or cut_point(joined, length - 4)
        chunk, buffers = joined[:end], [joined[end:]]
        del joined  # free it before yielding: it may be large
        yield offset, chunk
        offset += end
        length -= end
        wanted = size
    joined = b"".join(buffers)
    buffers.clear()  # not in memory twice
    yield offset, joined


def _to_line_end(stream: ByteStream) -> tuple[int, bytes]:
    """Read on to the next LF: (number of bytes up to it, the bytes read after it)."""
    passed = 0
    while data := stream.read(CHUNK):
        end = data.find(b"\n") + 1
        if end:
            return passed + end, data[end:]
        passed += len(data)
    return passed, b""


def in_batches(documents: Iterable[tuple[int, bytes]], file: str) -> Iterator[RawBatch]:
    """Single documents, each with its place, as batches of about BATCH_BYTES."""
    batch: list[bytes] = []
    places: list[int] = []
    size = 0
    for place, document in documents:
        batch.append(document)
        places.append(place)
        size += len(document)
        if size > BATCH_BYTES:
            yield RawBatch.join(batch, file, places)
            batch, places, size = [], [], 0
    if batch:
        yield RawBatch.join(batch, file, places)


def range_parts(file: InputFile, options: SourceOptions) -> Iterator[Part]:
    """Byte ranges of a plain file of records in UTF-8; another is a part, streamed when large."""
    large = file.num_bytes > RANGE_BYTES
    if compression_of(file.path) or (large and not is_plain_text(file.path, options)):
        weight = text_weight(file.path, file.num_bytes)
        yield Part(file.path, weight, streamed=weight > STREAM_BYTES)
        return
    for start in range(0, max(file.num_bytes, 1), RANGE_BYTES):
        stop = start + RANGE_BYTES if start + RANGE_BYTES < file.num_bytes else None
        yield Part(file.path, min(RANGE_BYTES, file.num_bytes - start), start, stop)


def _open_records(
    part: Part, ends: RecordEnds, options: SourceOptions, recorder: Recorder
) -> tuple[ByteStream, int] | None:
    """(stream, offset) from a part's first record on, or None when it has none."""
    if part.start == 0:  # later parts are of a file known to be plain text
        text = open_text(part, options, recorder)
        if text is None or part.stop is None:
            return (text, 0) if text else None
        text.close()
    return open_range(part.path, part.start, part.stop, ends)


def read_records(
    part: Part,
    ends: RecordEnds,
    documents: Callable[[bytes, int], Iterator[RawBatch]],
    options: SourceOptions,
    recorder: Recorder,
) -> Iterator[RawBatch]:
    """The documents of the records that begin in a part, made by ``documents`` (bytes, offset)."""
    opened = _open_records(part, ends, options, recorder)
    if opened is None:
        return
    stream, offset = opened
    seen = offset

    def too_long(place: int, detail: str) -> None:
        recorder.drop("line_too_long", part.path, place, detail)

    try:
        for at, data in chunks(stream, offset, ends, BATCH_BYTES, too_long):
            seen = at + len(data)
            yield from documents(data, at)
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, seen, error.detail)
    finally:
        stream.close()


def stream_pieces(path: str, ends: RecordEnds, options: SourceOptions) -> Iterator[Piece]:
    """A large file of records as plain files of about PIECE_BYTES, in UTF-8."""
    name = Path(path).name.removesuffix(compression_of(path) or "")
    stream = TextStream(path, options.encoding)
    detected = stream.detected
    decoded = detected.encoding if detected.encoding != UTF8 else ""
    dropped: list[DroppedRecord] = []  # since the last piece

    def too_long(place: int, detail: str) -> None:
        dropped.append(DroppedRecord("line_too_long", path, place, detail))

    try:
        if detected.reason:
            record = DroppedRecord(detected.reason, path, 0, detected.detail)
            yield Piece((), 0, (record,))
            return
        for at, data in chunks(stream, 0, ends, PIECE_BYTES, too_long):
            if data or dropped:
                first = decoded if at == 0 else ""
                files = (SpooledFile(name, data, len(data), path, at, first),) if data else ()
                yield Piece(files, at + len(data), tuple(dropped))
                dropped.clear()
    except BrokenStreamError:
        if dropped:
            yield Piece((), dropped[-1].place, tuple(dropped))
        raise
    finally:
        stream.close()
