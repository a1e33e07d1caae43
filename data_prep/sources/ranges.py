"""Byte ranges of plain files, and chunks of streams, that end where a record ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from data_prep.sources.base import Fault, InputFile, Part, Piece, SourceOptions, Spooled
from data_prep.sources.long_documents import cut_point
from data_prep.sources.opening import TextStream, is_plain_text, open_text
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
# a compressed file of about so much text is handed out in pieces while it is read
STREAM_BYTES = 64 << 20
PIECE_BYTES = 16 << 20
# a line longer than this is not read whole (and so is not JSON)
MAX_LINE_BYTES = 64 << 20

# the place right after the last record end in some bytes, or 0
EndFinder = Callable[[bytes], int]


class RecordEnds(NamedTuple):
    """Where records end: the first end at a place of a file or later, the last one in some bytes.

    first: (file, place) -> place, or None where there is none; it must not fall as its place grows.
    lines: a record is a line, of no use unless it is whole.
    """

    first: Callable[[BinaryIO, int], int | None]
    last: EndFinder
    lines: bool = False


def last_line_end(data: bytes) -> int:
    """After the last LF, or 0."""
    return data.rfind(b"\n") + 1


def first_line_end(file: BinaryIO, at: int) -> int | None:
    """After the first LF that ends at ``at`` or later; None: there is none."""
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

    When the stream turns out to be broken, the whole records before come first, then the error.
    Of a record of more than MAX_LINE_BYTES, a line is passed over, and ``too_long`` told its place;
    text is handed on in pieces that end between characters.
    """
    held: list[bytes] = []
    length, wanted = 0, size
    while True:
        try:
            data = stream.read(CHUNK)
        except BrokenStreamError:
            joined = b"".join(held)
            yield offset, joined[: ends.last(joined)]  # the whole records before the damage
            raise
        if not data:
            break
        held.append(data)
        length += len(data)
        if length < wanted:
            continue
        joined = b"".join(held)
        held = [joined]
        end = ends.last(joined)
        if end == 0 and length < MAX_LINE_BYTES:
            # look again when twice as much is there: linear time
            wanted = min(max(wanted, 2 * length), MAX_LINE_BYTES)
            continue
        if end == 0 and ends.lines:
            too_long(offset, f"a line of more than {MAX_LINE_BYTES} bytes")
            del joined
            held.clear()
            passed, rest = _to_line_end(stream)
            offset, held = offset + length + passed, [rest]
            length, wanted = len(rest), size
            continue
        end = end or cut_point(joined, length - 4)
        chunk, held = joined[:end], [joined[end:]]
        del joined  # it may be large, and the caller takes its time
        yield offset, chunk
        offset += end
        length -= end
        wanted = size
    joined = b"".join(held)
    held.clear()  # what may be large is not in memory twice
    yield offset, joined


def _to_line_end(stream: ByteStream) -> tuple[int, bytes]:
    """Read on to the next LF: (bytes up to it, what was read behind it)."""
    passed = 0
    while data := stream.read(CHUNK):
        end = data.find(b"\n") + 1
        if end:
            return passed + end, data[end:]
        passed += len(data)
    return passed, b""


def in_batches(documents: Iterable[tuple[int, bytes]], file: str) -> Iterator[RawBatch]:
    """Documents that come one by one, each with its place, as batches of about BATCH_BYTES."""
    held: list[bytes] = []
    places: list[int] = []
    size = 0
    for place, document in documents:
        held.append(document)
        places.append(place)
        size += len(document)
        if size > BATCH_BYTES:
            yield RawBatch.join(held, file, places)
            held, places, size = [], [], 0
    if held:
        yield RawBatch.join(held, file, places)


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
    """A part from its first record on, and that one's offset, if there is anything to read."""
    if part.start == 0:  # others are of a file that was found to be plain text
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
    finding = stream.finding
    decoded = finding.encoding if finding.encoding != UTF8 else ""
    faults: list[Fault] = []  # since the last piece

    def too_long(place: int, detail: str) -> None:
        faults.append(("line_too_long", path, place, detail))

    try:
        if finding.reason:
            yield Piece((), 0, ((finding.reason, path, 0, finding.detail),))
            return
        for at, data in chunks(stream, 0, ends, PIECE_BYTES, too_long):
            if data or faults:
                first = decoded if at == 0 else ""
                files = (Spooled(name, data, len(data), path, at, first),) if data else ()
                yield Piece(files, at + len(data), tuple(faults))
                faults.clear()
    except BrokenStreamError:
        if faults:
            yield Piece((), faults[-1][2], tuple(faults))
        raise
    finally:
        stream.close()
