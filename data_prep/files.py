"""Small file operations that survive a kill: atomic writes, .npy headers, hashing."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import numpy as np


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable; file systems without this are left alone."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse to fsync a directory
    finally:
        os.close(descriptor)


def npy_header(dtype: np.dtype, count: int) -> bytes:
    """The header of a one-dimensional .npy file (format 1.0), as numpy itself writes it."""
    buffer = io.BytesIO()
    description = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()


class HashingWriter:
    """Writes a one-dimensional .npy file of a known length in pieces, hashing as it goes.

    The file appears under its name only on ``close``; leaving early deletes the temporary file.
    """

    def __init__(self, path: Path, dtype: np.dtype | str, count: int):
        self.path = path
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.remaining = count
        self.num_bytes = 0
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._digest = hashlib.sha256()
        self._file = open(self._temporary, "wb")  # noqa: SIM115 (closed by close and abort)
        self._write(npy_header(self.dtype, count))

    def _write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._file.write(data)
        self.num_bytes += len(data)

    def write(self, values: np.ndarray) -> None:
        """Append values, converted to the file's dtype."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        self.remaining -= len(values)
        self._write(values.view(np.uint8).data)

    def close(self) -> tuple[int, str]:
        """Finish the file; returns (bytes, sha256). Raises ValueError when values are missing."""
        if self.remaining:
            self.abort()
            raise ValueError(f"{self.path}: {self.remaining} values missing at close")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self.path)
        return self.num_bytes, self._digest.hexdigest()

    def abort(self) -> None:
        """Drop the unfinished file."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def sha256_of(path: Path, chunk_bytes: int = 1 << 22) -> str:
    """The sha256 of a file (hex), read in chunks."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(chunk_bytes):
            digest.update(chunk)
    return digest.hexdigest()
