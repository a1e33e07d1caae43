"""The files of an input, sorted by path, in little memory: a corpus may be millions of files."""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from data_prep.errors import UsageError
from data_prep.sources.base import InputFile, pack, unpack

PACK = 4096  # files that are compressed together
END_BYTES = 4096  # at a file's start and end, which are hashed
_ODD, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1  # mixes device and inode


@dataclass
class _Skipped:
    """The number of skipped files, and the first of them."""

    count: int = 0
    first: str = ""

    def add(self, path: str) -> None:
        """One more."""
        self.first = self.first or path
        self.count += 1


class Walk:
    """Counts what a search through folders skips. output: a folder to exclude."""

    def __init__(self, output: str | os.PathLike[str] | None = None):
        self.other, self.hidden, self.same = _Skipped(), _Skipped(), _Skipped()
        self._output = None if output is None else os.path.realpath(output)

    def is_output(self, path: str) -> bool:
        """Whether a path is the output folder."""
        return self._may_be(path) and os.path.realpath(path) == self._output

    def is_in_output(self, path: str) -> bool:
        """Whether a path is the output folder or lies in it."""
        real = os.path.realpath(path) + os.sep if self._may_be(path) else ""
        return real.startswith(f"{self._output}{os.sep}")

    def _may_be(self, path: str) -> bool:
        """A cheap first test: the real path is slow to get for millions of files."""
        output = self._output
        return output is not None and (os.path.basename(output) in path or os.path.islink(path))

    @property
    def left_out(self) -> str | None:
        """A message about the skipped files, or None."""
        reasons = []
        if self.other.count:
            reasons.append(f"{self.other.count} with another suffix (first {self.other.first})")
        if self.hidden.count:
            reasons.append(f"{self.hidden.count} hidden (first {self.hidden.first})")
        if self.same.count:
            reasons.append(f"{self.same.count} the same as another (first {self.same.first})")
        return "left out of the input: " + ", ".join(reasons) if reasons else None


class _Links:
    """Folders behind links below ``root``: each is entered once, also when links make a circle."""

    def __init__(self, root: str):
        self._root = os.path.realpath(root)
        self._seen = {self._root}

    def is_new(self, path: str, through: bool) -> bool:
        """Whether a folder, reached through a link, is not visited at another place."""
        real = os.path.realpath(path)
        inside = through and real.startswith(self._root + os.sep)
        if inside and f"{os.sep}." not in real[len(self._root) :]:
            return False  # it is visited at its real place
        new = real not in self._seen
        self._seen.add(real)
        return new


class FileList(Collection[InputFile]):
    """Files in order, stored compressed: some 50 bytes each instead of 330 for an object."""

    def __init__(self, files: Iterable[InputFile], walk: Walk | None = None):
        self._walk = walk
        self._packed: list[bytes] = []
        self._identities = array("Q")
        self._length = self.num_bytes = 0
        block: list[InputFile] = []
        for file in files:
            block.append(file)
            self._length += 1
            self.num_bytes += file.num_bytes
            self._identities.append(file.identity)
            if len(block) == PACK:
                self._packed.append(pack(block))
                block = []
        if block:
            self._packed.append(pack(block))

    def once(self) -> FileList:
        """Each file once, under the first of its paths."""
        numbers = np.frombuffer(self._identities, np.uint64)
        values, counts = np.unique(numbers, return_counts=True)
        repeated = {int(value) for value in values[counts > 1]} - {0}
        return FileList(self._first(repeated), self._walk) if repeated else self

    def _first(self, repeated: set[int]) -> Iterator[InputFile]:
        seen: dict[int, str] = {}
        for file in self:
            if file.identity in repeated:
                first = seen.setdefault(file.identity, file.path)
                if first != file.path and os.path.samefile(first, file.path):
                    if self._walk:
                        self._walk.same.add(file.path)
                    continue
            yield file

    @property
    def left_out(self) -> str | None:
        """A message about skipped files of folders, or None."""
        return self._walk.left_out if self._walk else None

    def __iter__(self) -> Iterator[InputFile]:
        for packed in self._packed:
            yield from unpack(InputFile, packed)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, file: object) -> bool:
        return any(file == other for other in self)


def files_below(
    path: str, suffixes: tuple[str, ...], walk: Walk | None = None
) -> Iterator[InputFile]:
    """The files of a folder to its bottom, sorted by path; a file is itself.

    Suffixes fit in capitals, too. Hidden files and folders are left out, links to folders followed.
    Raises UsageError for what cannot be read.
    """
    if not os.path.isdir(path):
        yield input_file(path)
        return
    walk = walk or Walk()
    yield from _below(path, suffixes, walk, _Links(path))


def _below(
    path: str, suffixes: tuple[str, ...], walk: Walk, links: _Links, linked: bool = False
) -> Iterator[InputFile]:
    """linked: the folder was reached through a link."""
    prefix = os.path.join(path, "")
    for name in _names(path):
        below = prefix + name
        if name.startswith("."):
            walk.hidden.add(below.removesuffix(os.sep))
        elif name.endswith(os.sep):
            below = below[:-1]
            if walk.is_output(below):
                continue
            through = os.path.islink(below)
            if (linked or through) and not links.is_new(below, through):
                continue
            yield from _below(below, suffixes, walk, links, linked or through)
        elif name.lower().endswith(suffixes) or not suffixes:
            yield input_file(below)
        else:
            walk.other.add(below)


def _names(path: str) -> list[str]:
    """The names in a folder, sorted; those of folders end in a slash."""
    try:
        with os.scandir(path) as entries:
            # "a-b" comes before "a/c": a folder's name is compared with its slash
            return sorted(entry.name + os.sep * entry.is_dir() for entry in entries)
    except OSError as error:
        raise UsageError(f"input {path} cannot be read: {error.strerror}") from None


def input_file(path: str) -> InputFile:
    """A file with its size and what tells a change. Raises UsageError when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
        try:
            return facts_of(path, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"input {path} cannot be read: {error.strerror}") from None


def facts_of(path: str, descriptor: int) -> InputFile:
    """An open file with its size, time and the hash of its ends; UsageError where it is none."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"input {path} is a pipe or a device; write its text to a file")
    start = end = os.pread(descriptor, END_BYTES, 0)
    if status.st_size > END_BYTES:
        end = os.pread(descriptor, END_BYTES, status.st_size - END_BYTES)
    ends = hashlib.blake2b(start + end, digest_size=8)
    identity = (status.st_dev * _ODD + status.st_ino) & _WORD
    return InputFile(path, status.st_size, status.st_mtime_ns, ends.digest(), identity)


def facts_of_all(path: str, files: Iterable[InputFile]) -> InputFile:
    """A folder that a source takes as one, from the files in it."""
    size = newest = 0
    ends = hashlib.blake2b(digest_size=8)
    for file in files:
        size, newest = size + file.num_bytes, max(newest, file.modified_ns)
        ends.update(os.fsencode(file.path) + b"\0" + file.ends)
    return InputFile(path, size, newest, ends.digest())
