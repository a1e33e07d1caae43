"""The files of an input, sorted by path, in little memory: a corpus may be millions of files."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Collection, Iterable, Iterator

from data_prep.errors import UsageError
from data_prep.sources.base import InputFile

PACK = 4096  # files that are compressed together


class FileList(Collection[InputFile]):
    """Files in order, kept compressed: some 30 bytes each where an object takes 230."""

    def __init__(self, files: Iterable[InputFile]):
        self._packed: list[bytes] = []
        self._length = self.num_bytes = 0
        held: list[InputFile] = []
        for file in files:
            held.append(file)
            self._length += 1
            self.num_bytes += file.num_bytes
            if len(held) == PACK:
                self._pack(held)
                held = []
        self._pack(held)

    def _pack(self, files: list[InputFile]) -> None:
        self._packed.append(zlib.compress(pickle.dumps(files), 1))

    def __iter__(self) -> Iterator[InputFile]:
        for packed in self._packed:
            yield from pickle.loads(zlib.decompress(packed))

    def __len__(self) -> int:
        return self._length

    def __contains__(self, file: object) -> bool:
        return any(file == other for other in self)


def files_below(path: str, suffixes: tuple[str, ...]) -> Iterator[InputFile]:
    """The files of a folder to its bottom, sorted by path; a file is itself.

    Raises UsageError for what cannot be read. Links to folders are not followed.
    """
    if not os.path.isdir(path):
        yield input_file(path)
        return
    try:
        with os.scandir(path) as entries:
            # "a-b" comes before "a/c": a folder's name is compared with its slash
            found = sorted(
                entry.name + os.sep * entry.is_dir(follow_symlinks=False)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) or not entry.is_dir()
            )
    except OSError as error:
        raise UsageError(f"input {path} cannot be read: {error.strerror}") from None
    for name in found:
        if name.endswith(os.sep):
            yield from files_below(os.path.join(path, name[:-1]), suffixes)
        elif name.endswith(suffixes) or not suffixes:
            yield input_file(os.path.join(path, name))


def input_file(path: str) -> InputFile:
    """A file with its size. Raises UsageError when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return InputFile(path, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"input {path} cannot be read: {error.strerror}") from None
