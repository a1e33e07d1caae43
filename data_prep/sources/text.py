"""Source ``text``: plain text files; a document is a file, or a block between blank lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np

from data_prep.sources.base import InputFile, Part, Piece
from data_prep.sources.blank_lines import BLANK_LINE_ENDS, find_blocks
from data_prep.sources.long_documents import cut_while_reading
from data_prep.sources.opening import open_text
from data_prep.sources.options import SourceOptions
from data_prep.sources.ranges import range_parts, read_records, stream_pieces
from data_prep.sources.streams import (
    CHUNK,
    COMPRESSED,
    COMPRESSED_HEADS,
    BrokenStreamError,
    ByteStream,
    text_weight,
)
from data_prep.text.batch import MERGED_BYTES, RawBatch, Recorder
from data_prep.text.encodings import BINARY_HEADS

SMALL_FILE = 1 << 16  # bytes; smaller files are read in one go, many together
_OTHER_HEADS = (*COMPRESSED_HEADS, *BINARY_HEADS)  # of files that are more than their bytes
LONGEST_LINE = 4 << 20  # a longer one is not kept together where its file is damaged


class TextSource:
    """See the module."""

    name = "text"
    summary = (
        "text files, plain or .gz .bz2 .xz .zst; a document is a file (or --split-blank-lines)"
    )
    suffixes = tuple(s + c for s in (".txt", ".text") for c in ("", *COMPRESSED))

    def parts(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a file; with blank-line blocks, a plain file is cut into byte ranges."""
        for file in files:
            if options.split_blank_lines:
                yield from range_parts(file, options)
            else:
                yield Part(file.path, text_weight(file.path, file.num_bytes))

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""

        def documents(data: bytes, offset: int) -> Iterator[RawBatch]:
            return _blocks(data, offset, part.path)

        if options.split_blank_lines:
            yield from read_records(part, BLANK_LINE_ENDS, documents, options, recorder)
        else:
            yield from read_files((part,), options, recorder)

    def read_many(
        self, parts: Iterable[Part], options: SourceOptions, recorder: Recorder
    ) -> Iterator[RawBatch]:
        """See ManyFilesSource.read_many."""
        if options.split_blank_lines:
            for part in parts:
                yield from self.read(part, options, recorder)
        else:
            yield from read_files(parts, options, recorder)

    def pieces(self, part: Part, options: SourceOptions) -> Iterator[Piece]:
        """See Source.pieces."""
        return stream_pieces(part.path, BLANK_LINE_ENDS, options)


def read_files(
    parts: Iterable[Part], options: SourceOptions, recorder: Recorder
) -> Iterator[RawBatch]:
    """Files, each as a document; small ones come many in a batch."""
    documents: list[bytes] = []
    paths: list[str] = []
    size = 0
    for part in parts:
        data = _read_small(part)
        if data is not None:
            documents.append(data)
            paths.append(part.path)
            size += len(data)
        if documents and (data is None or size > MERGED_BYTES):
            yield _of_files(documents, paths)
            documents, paths, size = [], [], 0
        if data is None:
            yield from _read_whole(part, options, recorder)
    if documents:
        yield _of_files(documents, paths)


def _of_files(documents: list[bytes], paths: list[str]) -> RawBatch:
    return RawBatch.join(documents, paths[0], [0] * len(paths), paths, whole_files=True)


def _read_small(part: Part) -> bytes | None:
    """The bytes of a small file that is no more than its bytes; fast, there may be millions."""
    if not 0 < part.weight < SMALL_FILE:
        return None
    descriptor = os.open(part.path, os.O_RDONLY)
    try:
        data = os.read(descriptor, SMALL_FILE)
    finally:
        os.close(descriptor)
    # another size: compressed, changed meanwhile, or read in part
    return data if len(data) == part.weight and not data.startswith(_OTHER_HEADS) else None


def _read_whole(part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
    """A file as one document; one that is too long is cut into several.

    What is damaged ends at its last whole line.
    """
    stream = open_text(part, options, recorder)
    if stream is None:
        return
    damage: list[BrokenStreamError] = []
    seen = 0
    try:
        for offset, document in cut_while_reading(_whole_lines(stream, damage), recorder):
            seen = offset + len(document)
            if document or not damage:
                yield RawBatch.join([document], part.path, [offset])
    finally:
        stream.close()
    for error in damage:
        recorder.drop(error.reason, part.path, seen, error.detail)


def _whole_lines(stream: ByteStream, damage: list[BrokenStreamError]) -> Iterator[bytes]:
    """All of a stream; where it breaks, whole lines only, and the error goes to ``damage``."""
    line = b""  # the start of one
    try:
        while data := stream.read(CHUNK):
            data = line + data
            end = data.rfind(b"\n") + 1 or len(data) * (len(data) > LONGEST_LINE)
            line = data[end:]
            if end:
                yield data[:end]
    except BrokenStreamError as error:
        damage.append(error)
        return
    yield line


def _blocks(data: bytes, offset: int, path: str) -> Iterator[RawBatch]:
    array = np.frombuffer(data, np.uint8)
    bounds = np.empty((len(array) // 2 + 1, 2), np.int64)
    blocks = bounds[: find_blocks(array, bounds)]
    if len(blocks):
        starts, ends = blocks[:, 0].copy(), blocks[:, 1].copy()
        yield RawBatch(array, starts, ends, path, starts + offset)
