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
XZ_STEP = 1 << 16  # what is decompressed at a time: an error takes no more with it


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
    name = path.lower()
    return num_bytes * next((r for suffix, r in RATIO.items() if name.endswith(suffix)), 1)


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
    return _XzStream(file) if kind == ".xz" else _GzipStream(file)


class _GzipStream:
    """Turns the errors of gzip into BrokenStreamError."""

    def __init__(self, file: BinaryIO):
        self._inner = cast("io.BufferedIOBase", gzip.GzipFile(fileobj=file))
        self._file = file

    def read(self, size: int, /) -> bytes:
        try:
            # read1: what was decompressed before an error is not lost
            return self._inner.read1(size)
        except EOFError as error:
            raise BrokenStreamError("truncated_archive", str(error)) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise BrokenStreamError("damaged_archive", str(error)) from None

    def close(self) -> None:
        self._inner.close()
        self._file.close()


class _XzStream:
    """xz streams one after another; ``LZMAFile`` passes over what follows a stream and is none."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._stream: lzma.LZMADecompressor | None = None
        self._pending = b""
        self._taken = 0  # bytes of the file that were read

    def read(self, size: int, /) -> bytes:
        while self._stream is not None or self._begin():
            found = self._decompress(self._stream, min(size, XZ_STEP))
            if found:
                return found
        return b""

    def _take(self) -> bytes:
        data, self._pending = self._pending or self._file.read(CHUNK // 8), b""
        self._taken += len(data)
        return data

    def _put_back(self, data: bytes) -> None:
        self._pending = data
        self._taken -= len(data)

    def _begin(self) -> bool:
        """Whether one more stream follows. Zeros after a stream are padding, if 4 n of them."""
        padding = 0
        while data := self._take():
            rest = data.lstrip(b"\0")
            padding += len(data) - len(rest)
            if rest:
                self._put_back(rest)
                break
        if padding % 4:
            detail = f"{padding} zero bytes before byte {self._taken}, after an xz stream"
            raise BrokenStreamError("damaged_archive", detail)
        if self._pending:
            self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        return bool(self._pending)

    def _decompress(self, stream: lzma.LZMADecompressor | None, size: int) -> bytes:
        assert stream is not None
        start = self._taken
        data = self._take() if stream.needs_input else b""
        if stream.needs_input and not data:
            raise BrokenStreamError("truncated_archive", "the xz stream ends early")
        try:
            found = stream.decompress(data, size)
        except lzma.LZMAError as error:
            raise BrokenStreamError("damaged_archive", f"xz, from byte {start}: {error}") from None
        if stream.eof:
            self._put_back(stream.unused_data)
            self._stream = None
        return found

    def close(self) -> None:
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
