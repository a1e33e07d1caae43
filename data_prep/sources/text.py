"""Source ``text``: plain text files; a document is a file, or a block between blank lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from data_prep.batch import RawBatch, Recorder
from data_prep.compiled import compiled
from data_prep.sources.base import InputFile, Part, SourceOptions
from data_prep.sources.ranges import (
    MAX_DOCUMENT_BYTES,
    RANGE_BYTES,
    chunks,
    cut_point,
    last_blank_line_end,
    open_range,
)
from data_prep.sources.streams import (
    CHUNK,
    COMPRESSED,
    BrokenStreamError,
    compression_of,
    open_stream,
    text_weight,
)

BLANK_LINES = (b"\n\n", b"\n\r\n")
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class TextSource:
    """See the module."""

    name = "text"
    summary = "text files, plain or .gz .xz .zst; a document is a file (or --split-blank-lines)"
    suffixes = tuple(s + c for s in (".txt", ".text") for c in ("", *COMPRESSED))

    def plan(
        self, files: Sequence[InputFile], options: SourceOptions, scratch: Path
    ) -> Iterable[Part]:
        """A part is a file; with blank-line blocks, a plain file is cut into byte ranges."""
        for file in files:
            weight = text_weight(file.path, file.num_bytes)
            big = options.split_blank_lines and file.num_bytes > RANGE_BYTES
            if big and compression_of(file.path) is None:
                for start in range(0, file.num_bytes, RANGE_BYTES):
                    stop = start + RANGE_BYTES if start + RANGE_BYTES < file.num_bytes else None
                    yield Part(file.path, RANGE_BYTES, start, stop)
            else:
                yield Part(file.path, weight)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        if Path(part.path).stat().st_size == 0:
            recorder.drop("empty_file", part.path, 0)
        elif is_utf16(part.path):
            detail = "UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8"
            recorder.drop("utf16_file", part.path, 0, detail)
        elif options.split_blank_lines:
            yield from _read_blocks(part, recorder)
        else:
            yield from read_whole(part, recorder)


def is_utf16(path: str) -> bool:
    """The file begins with a UTF-16 byte order mark."""
    with open(path, "rb") as file:
        return file.read(2) in UTF16_MARKS


def read_whole(part: Part, recorder: Recorder) -> Iterator[RawBatch]:
    """A file as one document; one that is too long is cut into several."""
    stream = open_stream(part.path)
    held, length, offset = [], 0, 0
    try:
        while data := stream.read(CHUNK):
            held.append(data)
            length += len(data)
            if length > MAX_DOCUMENT_BYTES:
                joined = b"".join(held)
                cut = cut_point(joined)
                recorder.count("documents_cut_too_long")
                yield RawBatch.join([joined[:cut]], part.path, [offset])
                offset += cut
                held, length = [joined[cut:]], length - cut
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, offset, error.detail)
        return
    finally:
        stream.close()
    yield RawBatch.join([b"".join(held)], part.path, [offset])


def _read_blocks(part: Part, recorder: Recorder) -> Iterator[RawBatch]:
    """The blocks between blank lines that begin in the part."""
    if compression_of(part.path) is None:
        opened = open_range(part.path, part.start, part.stop, BLANK_LINES)
        if opened is None:
            return
        stream, offset = opened
    else:
        stream, offset = open_stream(part.path), 0
    seen = offset
    try:
        for at, data, _ in chunks(stream, offset, last_blank_line_end):
            seen = at + len(data)
            yield from _blocks(data, at, part.path)
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, seen, error.detail)
    finally:
        stream.close()


def _blocks(data: bytes, offset: int, path: str) -> Iterator[RawBatch]:
    array = np.frombuffer(data, np.uint8)
    bounds = np.empty((len(array) // 2 + 1, 2), np.int64)
    found = bounds[: find_blocks(array, bounds)]
    if len(found):
        starts, ends = found[:, 0].copy(), found[:, 1].copy()
        yield RawBatch(array, starts, ends, path, starts + offset)


@compiled
def find_blocks(data, out):
    """Write (start, end) of each run of lines that are not blank to ``out``; returns the count."""
    count = line = 0
    start = -1
    blank = True
    for i in range(len(data) + 1):
        if i == len(data) or data[i] == 10:
            if not blank and start < 0:
                start = line
            elif blank and start >= 0:
                out[count, 0], out[count, 1] = start, line
                count += 1
                start = -1
            line = i + 1
            blank = True
        elif data[i] != 32 and data[i] != 9 and data[i] != 13:
            blank = False
    if start >= 0:
        out[count, 0], out[count, 1] = start, len(data)
        count += 1
    return count
