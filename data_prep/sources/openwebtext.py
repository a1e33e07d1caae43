"""Source ``openwebtext``: the original release, in any state of unpacking.

- ``openwebtext/urlsf_subsetNN-MM_data.xz``: tar archives inside xz, a .txt member a page
- the same as plain .tar, or unpacked into folders of .txt files
- the outer ``openwebtext.tar`` or ``openwebtext.tar.xz`` of all of them; the latter has no random
  access, so its members become work while it is unpacked, in the order of the archive

Blank lines inside a page are paragraphs, not documents.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice

import numpy as np

from data_prep.sources.archive import Member, read_members
from data_prep.sources.base import DroppedRecord, InputFile, Part, Piece, SpooledFile
from data_prep.sources.long_documents import MAX_DOCUMENT_BYTES
from data_prep.sources.options import SourceOptions
from data_prep.sources.ranges import BATCH_BYTES, PIECE_BYTES, RangeStream
from data_prep.sources.streams import (
    RATIO,
    BrokenStreamError,
    ByteStream,
    compression_of,
    decompressed,
    open_stream,
)
from data_prep.sources.text import read_files
from data_prep.text.batch import RawBatch, Recorder

OUTER_MEMBER = (".xz", ".tar")
LONGEST_INNER = 1 << 30  # an archive inside the outer one is a few MiB


class OpenWebTextSource:
    """See the module."""

    name = "openwebtext"
    summary = "the original release: tar in .xz, .tar, unpacked folders, or the outer .tar(.xz)"
    suffixes = (".xz", ".tar", ".txt")

    def parts(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is an inner archive (by its place in an outer one), or files of a folder."""
        for file in files:
            if _is_page(file.path):
                yield Part(file.path, file.num_bytes)
            else:
                yield from _archive_parts(file)

    def read_many(
        self, parts: Iterable[Part], options: SourceOptions, recorder: Recorder
    ) -> Iterator[RawBatch]:
        """See ManyFilesSource.read_many."""
        for loose, group in groupby(parts, key=lambda part: _is_page(part.path)):
            if loose:
                yield from read_files(group, options, recorder)
            else:
                for part in group:
                    yield from self.read(part, options, recorder)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        if part.dropped is not None:
            recorder.drop(*part.dropped)
            return
        if _is_page(part.path):
            yield from read_files((part,), options, recorder)
            return
        if part.streamed:
            yield from _read_outer(part, recorder)
            return
        if part.stop is None:
            stream = open_stream(part.path)
        else:  # an archive inside an outer tar
            file = open(part.path, "rb")  # noqa: SIM115 (closed below)
            stream = _inner_stream(RangeStream(file, part.start, part.stop))
        try:
            yield from _pages(stream, part, recorder)
        finally:
            stream.close()

    def pieces(self, part: Part, options: SourceOptions) -> Iterator[Piece]:
        """See Source.pieces: archives of a compressed outer one, together PIECE_BYTES of text."""
        files: list[SpooledFile] = []
        dropped: list[DroppedRecord] = []
        weight = place = 0
        stream = open_stream(part.path)
        try:
            for member in read_members(stream, LONGEST_INNER):
                place = member.offset + max(member.stop - member.start, 0)
                if not _is_archive(member):
                    continue
                origin = f"{part.path}/{member.name}"
                if member.start < 0:
                    dropped.append(DroppedRecord("member_too_large", origin, member.offset))
                    continue
                name = f"{len(files):04d}{os.path.splitext(member.name.lower())[1]}"
                data = member.buffer[member.start : member.stop]
                files.append(SpooledFile(name, data, len(data) * RATIO.get(name[-3:], 1), origin))
                weight += files[-1].weight
                if weight >= PIECE_BYTES:
                    yield Piece(tuple(files), place, tuple(dropped))
                    files, dropped, weight = [], [], 0
        except BrokenStreamError:
            yield Piece(tuple(files), place, tuple(dropped))
            raise
        finally:
            stream.close()
        yield Piece(tuple(files), place, tuple(dropped))


def _read_outer(part: Part, recorder: Recorder) -> Iterator[RawBatch]:
    """A compressed outer archive, read in one go (for samples of it)."""
    stream = open_stream(part.path)
    try:
        for member in read_members(stream, LONGEST_INNER):
            if member.start >= 0 and _is_archive(member):
                data = member.buffer[member.start : member.stop]
                inner = _inner_stream(RangeStream(io.BytesIO(data), 0, None))
                yield from _pages(inner, part, recorder)
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, 0, error.detail)
    finally:
        stream.close()


def _archive_parts(file: InputFile) -> Iterator[Part]:
    kind = compression_of(file.path)
    if not _is_outer(file.path):
        yield Part(file.path, file.num_bytes * RATIO.get(kind or "", 1))
    elif kind is None:
        yield from _inner_parts(file.path)
    else:
        yield Part(file.path, file.num_bytes * RATIO[".xz"], streamed=True)


def _is_page(path: str) -> bool:
    return path.lower().endswith(".txt")


def _is_archive(member: Member) -> bool:
    return member.name.lower().endswith(OUTER_MEMBER)


def _is_outer(path: str) -> bool:
    """Archives are among the first members. An inner one is called ``_data.xz``, never .tar.xz."""
    if not path.lower().endswith((".tar", ".tar.xz")):
        return False
    stream = open_stream(path)
    try:
        members = islice(read_members(stream, LONGEST_INNER), 8)
        return any(_is_archive(member) for member in members)
    except BrokenStreamError:
        return False  # read will record it
    finally:
        stream.close()


def _inner_parts(path: str) -> Iterator[Part]:
    """The archives inside a plain outer tar, by their byte ranges; then its damage."""
    archives: list[tuple[str, int, int]] = []
    dropped: list[DroppedRecord] = []
    place = 0
    with open(path, "rb") as file:
        try:
            for m in read_members(file, LONGEST_INNER):
                place = m.offset + max(m.stop - m.start, 0)
                if not _is_archive(m):
                    continue
                if m.start < 0:
                    dropped.append(DroppedRecord("member_too_large", path, m.offset, m.name))
                else:
                    archives.append((m.name, m.offset, m.stop - m.start))
        except BrokenStreamError as error:
            dropped.append(DroppedRecord(error.reason, path, place, error.detail))
    for name, offset, size in sorted(archives):
        ratio = RATIO.get(os.path.splitext(name.lower())[1], 1)
        yield Part(path, size * ratio, offset, offset + size)
    for record in dropped:
        yield Part(path, 0, dropped=record)


def _inner_stream(outer: RangeStream) -> ByteStream:
    head = outer.read(6)
    rest = _Prefixed(head, outer)
    return decompressed(io.BufferedReader(rest), ".xz") if head.startswith(b"\xfd7zXZ") else rest


class _Prefixed(io.RawIOBase):
    """A stream with some bytes put back in front."""

    def __init__(self, head: bytes, stream: ByteStream):
        self._head, self._stream = head, stream

    def readable(self) -> bool:
        return True

    def readinto(self, target, /) -> int:
        data, self._head = self._head, b""
        data = data or self._stream.read(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _pages(stream: ByteStream, part: Part, recorder: Recorder) -> Iterator[RawBatch]:
    """The .txt members of an archive, in batches that share its buffers."""
    batch: list[Member] = []
    place = part.start
    try:
        for member in read_members(stream, MAX_DOCUMENT_BYTES):
            place = part.start + member.offset
            if not member.name.lower().endswith(".txt"):
                recorder.count("members_that_are_not_text")
                continue
            if member.start < 0:
                recorder.drop("member_too_large", part.path, place, member.name)
                continue
            if batch and batch[0].buffer is not member.buffer:
                yield _raw_batch(batch, part)
                batch = []
            batch.append(member)
            if member.stop - batch[0].start > BATCH_BYTES:
                yield _raw_batch(batch, part)
                batch = []
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, place, error.detail)
    if batch:
        yield _raw_batch(batch, part)


def _raw_batch(members: Sequence[Member], part: Part) -> RawBatch:
    bounds = np.array([(m.start, m.stop, m.offset) for m in members], np.int64)
    data = np.frombuffer(members[0].buffer, np.uint8)
    starts, ends = np.ascontiguousarray(bounds[:, 0]), np.ascontiguousarray(bounds[:, 1])
    places = bounds[:, 2] + part.start
    return RawBatch(data, starts, ends, part.path, places, whole_files=True)
