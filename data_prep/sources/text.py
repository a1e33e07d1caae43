"""Source ``text``: plain text files; a document is a file, or a block between blank lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from data_prep.batch import RawBatch, Recorder
from data_prep.sources.base import InputFile, Part, Piece, SourceOptions
from data_prep.sources.blank_lines import BLANK_LINE_ENDS, find_blocks
from data_prep.sources.long_documents import cut_while_reading
from data_prep.sources.ranges import (
    is_readable,
    range_parts,
    read_records,
    stream_pieces,
)
from data_prep.sources.streams import (
    CHUNK,
    COMPRESSED,
    BrokenStreamError,
    ByteStream,
    open_stream,
    text_weight,
)


class TextSource:
    """See the module."""

    name = "text"
    summary = "text files, plain or .gz .xz .zst; a document is a file (or --split-blank-lines)"
    suffixes = tuple(s + c for s in (".txt", ".text") for c in ("", *COMPRESSED))

    def plan(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a file; with blank-line blocks, a plain file is cut into byte ranges."""
        for file in files:
            if options.split_blank_lines:
                yield from range_parts(file)
            else:
                yield Part(file.path, text_weight(file.path, file.num_bytes))

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""

        def documents(data: bytes, offset: int) -> Iterator[RawBatch]:
            return _blocks(data, offset, part.path)

        if not is_readable(part, recorder):
            return
        if options.split_blank_lines:
            yield from read_records(part, BLANK_LINE_ENDS, documents, recorder)
        else:
            yield from read_whole(part, recorder)

    def pieces(self, part: Part, options: SourceOptions) -> Iterator[Piece]:
        """See Source.pieces."""
        return stream_pieces(part.path, BLANK_LINE_ENDS)


def read_whole(part: Part, recorder: Recorder) -> Iterator[RawBatch]:
    """A file as one document; one that is too long is cut into several."""
    stream = open_stream(part.path)
    seen = 0
    try:
        for offset, document in cut_while_reading(_read_on(stream), recorder):
            seen = offset + len(document)
            yield RawBatch.join([document], part.path, [offset])
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, seen, error.detail)
    finally:
        stream.close()


def _read_on(stream: ByteStream) -> Iterator[bytes]:
    while data := stream.read(CHUNK):
        yield data


def _blocks(data: bytes, offset: int, path: str) -> Iterator[RawBatch]:
    array = np.frombuffer(data, np.uint8)
    bounds = np.empty((len(array) // 2 + 1, 2), np.int64)
    found = bounds[: find_blocks(array, bounds)]
    if len(found):
        starts, ends = found[:, 0].copy(), found[:, 1].copy()
        yield RawBatch(array, starts, ends, path, starts + offset)
