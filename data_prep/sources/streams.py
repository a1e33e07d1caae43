"""Byte streams from plain, gzip, xz and zstd files; truncation is always noticed."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from typing import BinaryIO, Protocol, cast

from data_prep.errors import SourceError

COMPRESSED = (".gz", ".xz", ".zst")
# bytes of text per byte of compressed file, for cutting units; a guess is enough
RATIO = {".gz": 3, ".xz": 4, ".zst": 3}
_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
CHUNK = 1 << 20


class BrokenStreamError(SourceError):
    """A compressed file that ends early or is damaged; ``reason`` is short, for the counters."""

    def __init__(self, reason: str, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class ByteStream(Protocol):
    """What sources read from."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; b"" at the end. Raises BrokenStreamError."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def compression_of(path: str) -> str | None:
    """``.gz``, ``.xz``, ``.zst`` or None, by the first bytes of the file."""
    with open(path, "rb") as file:
        head = file.read(6)
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def text_weight(path: str, num_bytes: int) -> int:
    """About how many bytes of text a file holds, by its name."""
    return num_bytes * next((r for suffix, r in RATIO.items() if path.endswith(suffix)), 1)


def open_stream(path: str) -> ByteStream:
    """Open a file for reading its decompressed bytes."""
    kind = compression_of(path)
    file = open(path, "rb")  # noqa: SIM115 (closed by the stream)
    if kind is None:
        return file
    return decompressed(file, kind)


def decompressed(file: BinaryIO, kind: str) -> ByteStream:
    """The decompressed bytes of an open file."""
    if kind == ".zst":
        return _ZstdStream(file)
    if kind == ".gz":
        inner = cast("io.BufferedIOBase", gzip.GzipFile(fileobj=file))
    else:
        inner = cast("io.BufferedIOBase", lzma.LZMAFile(file))  # noqa: SIM115
    return _CheckedStream(inner, file)


class _CheckedStream:
    """Turns the errors of gzip and lzma into BrokenStreamError."""

    def __init__(self, inner: io.BufferedIOBase, file: BinaryIO):
        self._inner, self._file = inner, file

    def read(self, size: int, /) -> bytes:
        try:
            # read1: what was decompressed before an error is not lost
            return self._inner.read1(size)
        except EOFError as error:
            raise BrokenStreamError("truncated_archive", str(error)) from None
        except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise BrokenStreamError("damaged_archive", str(error)) from None

    def close(self) -> None:
        self._inner.close()
        self._file.close()


class _ZstdStream:
    """Zstandard frames one after another; ``zstandard``'s own reader does not see a short file."""

    def __init__(self, file: BinaryIO):
        import zstandard

        self._zstd, self._file = zstandard, file
        self._frame = None
        self._pending = b""
        self._out = io.BytesIO()

    def read(self, size: int, /) -> bytes:
        while True:
            found = self._out.read(size)
            if found:
                return found
            data = self._pending or self._file.read(CHUNK // 8)
            self._pending = b""
            if not data:
                if self._frame is not None:
                    raise BrokenStreamError("truncated_archive", "the zstd frame ends early")
                return b""
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        if self._frame is None:
            self._frame = self._zstd.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        try:
            self._out = io.BytesIO(self._frame.decompress(data))
        except self._zstd.ZstdError as error:
            raise BrokenStreamError("damaged_archive", str(error)) from None
        if self._frame.eof:
            self._pending = self._frame.unused_data
            self._frame = None

    def close(self) -> None:
        self._file.close()
