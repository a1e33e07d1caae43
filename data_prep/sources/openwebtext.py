"""Source ``openwebtext``: the original release, in any state of unpacking.

- ``openwebtext/urlsf_subsetNN-MM_data.xz``: tar archives inside xz, a .txt member a page
- the same as plain .tar, or unpacked into folders of .txt files
- the outer ``openwebtext.tar`` or ``openwebtext.tar.xz`` of all of them; the latter has no random
  access, so its members are first unpacked into the work folder

Blank lines inside a page are paragraphs, not documents.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

import numpy as np

from data_prep.batch import RawBatch, Recorder
from data_prep.files import write_atomically
from data_prep.sources.archive import Member, read_members
from data_prep.sources.base import InputFile, Part, SourceOptions
from data_prep.sources.ranges import BATCH_BYTES, MAX_DOCUMENT_BYTES, RangeStream
from data_prep.sources.streams import (
    RATIO,
    BrokenStreamError,
    ByteStream,
    compression_of,
    decompressed,
    open_stream,
)
from data_prep.sources.text import read_whole

OUTER_MEMBER = (".xz", ".tar")
LONGEST_INNER = 1 << 30  # an archive inside the outer one is a few MiB


class OpenWebTextSource:
    """See the module."""

    name = "openwebtext"
    summary = "the original release: tar in .xz, .tar, unpacked folders, or the outer .tar(.xz)"
    suffixes = (".xz", ".tar", ".txt")

    def plan(
        self, files: Sequence[InputFile], options: SourceOptions, scratch: Path
    ) -> Iterable[Part]:
        """A part is an inner archive (by its place in an outer one), or files of a folder."""
        for loose, group in groupby(files, key=lambda file: file.path.endswith(".txt")):
            if loose:
                yield from _loose_parts(list(group))
                continue
            for file in group:
                yield from _archive_parts(file, scratch)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        if part.path.endswith(".txt"):
            yield from read_whole(part, recorder)
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


def _loose_parts(files: Sequence[InputFile]) -> Iterator[Part]:
    for file in files:
        yield Part(file.path, file.num_bytes)


def _archive_parts(file: InputFile, scratch: Path) -> Iterator[Part]:
    kind = compression_of(file.path)
    if not _is_outer(file.path):
        yield Part(file.path, file.num_bytes * RATIO.get(kind or "", 1))
    elif kind is None:
        yield from _inner_parts(file.path)
    else:
        for path in unpack(file.path, scratch):
            size = path.stat().st_size
            yield Part(str(path), size * RATIO.get(path.suffix, 1))


def _is_outer(path: str) -> bool:
    """Archives are among the first members. An inner one is called ``_data.xz``, never .tar.xz."""
    if not path.endswith((".tar", ".tar.xz")):
        return False
    stream = open_stream(path)
    try:
        members = islice(read_members(stream, LONGEST_INNER), 8)
        return any(member.name.endswith(OUTER_MEMBER) for member in members)
    except BrokenStreamError:
        return False  # reading it will say so
    finally:
        stream.close()


def _inner_parts(path: str) -> Iterator[Part]:
    """The archives inside a plain outer tar, by their byte ranges."""
    with open(path, "rb") as file:
        found = [
            (m.name, m.offset, m.stop - m.start)
            for m in read_members(file, LONGEST_INNER)
            if m.name.endswith(OUTER_MEMBER)
        ]
    for name, offset, size in sorted(found):
        ratio = RATIO.get(os.path.splitext(name)[1], 1)
        yield Part(path, size * ratio, offset, offset + size)


def unpack(path: str, scratch: Path) -> list[Path]:
    """Unpack the archives of a compressed outer tar, or find them unpacked; sorted by name."""
    done = scratch / f"{Path(path).name}.done"
    folder = scratch / f"{Path(path).name}.members"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        stream = open_stream(path)
        try:
            for member in read_members(stream, LONGEST_INNER):
                _unpack_member(member, folder)
        finally:
            stream.close()
        write_atomically(done, b"")
    return sorted(p for p in folder.iterdir() if p.suffix in OUTER_MEMBER)


def _unpack_member(member: Member, folder: Path) -> None:
    target = folder / Path(member.name).name
    if member.start >= 0 and member.name.endswith(OUTER_MEMBER) and not target.exists():
        write_atomically(target, member.buffer[member.start : member.stop])


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
    held: list[Member] = []
    place = part.start
    try:
        for member in read_members(stream, MAX_DOCUMENT_BYTES):
            place = part.start + member.offset
            if not member.name.endswith(".txt"):
                recorder.count("members_that_are_not_text")
                continue
            if member.start < 0:
                recorder.drop("member_too_large", part.path, place, member.name)
                continue
            if held and held[0].buffer is not member.buffer:
                yield _batch(held, part)
                held = []
            held.append(member)
            if member.stop - held[0].start > BATCH_BYTES:
                yield _batch(held, part)
                held = []
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, place, error.detail)
    if held:
        yield _batch(held, part)


def _batch(members: Sequence[Member], part: Part) -> RawBatch:
    bounds = np.array([(m.start, m.stop, m.offset) for m in members], np.int64)
    data = np.frombuffer(members[0].buffer, np.uint8)
    starts, ends = np.ascontiguousarray(bounds[:, 0]), np.ascontiguousarray(bounds[:, 1])
    return RawBatch(data, starts, ends, part.path, bounds[:, 2] + part.start)
