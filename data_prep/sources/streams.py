"""Byte streams from plain, gzip, bzip2, xz and zstd files; truncation is always detected."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

from data_prep.errors import SourceError

COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
# bytes of text per byte of compressed file, for cutting units; a guess is enough
RATIO = {".gz": 3, ".xz": 4, ".zst": 3, ".bz2": 4}
_MAGIC = {
    b"\x1f\x8b\x08": ".gz",
    b"\xfd7zXZ\x00": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    # a frame to skip, which pzstd begins its files with
    **{bytes([0x50 + number]) + b"\x2a\x4d\x18": ".zst" for number in range(16)},
    **{b"BZh%d1AY&SY" % level: ".bz2" for level in range(1, 10)},
    **{b"BZh%d\x17rE8P\x90" % level: ".bz2" for level in range(1, 10)},  # of nothing
}
CHUNK = 1 << 20
STEP = 1 << 16  # bytes decompressed at a time; an error loses no more than these
# Damaged data may decompress to spliced text, which only the checksum at the end detects. So this
# many bytes wait for the end, and of a longer stream it is looked at first.
HELD_BACK = 16 << 20


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


def compression_of_head(head: bytes) -> str | None:
    """``.gz``, ``.bz2``, ``.xz``, ``.zst`` or None, by the first HEAD bytes of a file."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


HEAD = max(map(len, _MAGIC))
COMPRESSED_HEADS = tuple(_MAGIC)


def compression_of(path: str) -> str | None:
    """See ``compression_of_head``."""
    with open(path, "rb") as file:
        return compression_of_head(file.read(HEAD))


def text_weight(path: str, num_bytes: int) -> int:
    """About how many bytes of text a file holds, by its name."""
    return num_bytes * RATIO.get("." + path.rpartition(".")[2].lower(), 1)


def open_stream(path: str) -> ByteStream:
    """Open a file for reading its decompressed bytes."""
    kind = compression_of(path)
    file = open(path, "rb")  # noqa: SIM115 (closed by the stream)
    if kind is None:
        return file
    return decompressed(file, kind)


def decompressed(file: BinaryIO, kind: str) -> ByteStream:
    """The decompressed bytes of an open file."""
    return _Frames(file, kind)


class _GzipMember:
    """A gzip member, with the interface of ``lzma`` and ``bz2``; its checksum is compared."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._output_waits = False

    def decompress(self, data: bytes, size: int) -> bytes:
        output = self._inner.decompress(self._inner.unconsumed_tail + data, size)
        self._output_waits = len(output) == size
        return output

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail and not self._output_waits

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class _ZstdFrame:
    """The same for a Zstandard frame; its blocks are 128 KiB at most, and come whole."""

    needs_input = True

    def __init__(self) -> None:
        import zstandard

        self._inner = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        self._error = zstandard.ZstdError

    def decompress(self, data: bytes, size: int) -> bytes:
        try:
            return self._inner.decompress(data)
        except self._error as error:
            raise ValueError(error) from None

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


# (one stream's decompressor, bytes of the file that it is given at a time, zeros between streams
# come in multiples of)
_DECOMPRESSORS: dict[str, tuple[Callable[[], Any], int, int]] = {
    ".gz": (_GzipMember, CHUNK // 8, 1),
    ".bz2": (bz2.BZ2Decompressor, CHUNK // 8, 0),
    ".xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), CHUNK // 8, 4),
    ".zst": (_ZstdFrame, CHUNK // 8, 0),
}
_ERRORS = (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError)


class _Frames:
    """Compressed streams one after another, to the last byte of the file.

    The libraries' own readers ignore a short end, or other bytes after a stream. Nothing of a
    damaged stream is returned: its text waits until the end has been seen. Of a long one in a file
    that cannot go back, as in an archive, the last HELD_BACK bytes wait.
    """

    def __init__(self, file: BinaryIO, kind: str):
        self._file, self._kind = file, kind[1:]
        self._new, self._step, self._padding = _DECOMPRESSORS[kind]
        self._stream: Any = None
        self._pending = b""
        self._taken = 0  # bytes of the file that were read
        self._held: deque[bytes] = deque()
        self._num_held = self._num_returned = 0  # bytes of the stream in hand
        self._origin = file.tell() if file.seekable() else None
        self._start = 0  # of the stream in hand, in bytes of the file
        self._is_checked = False
        self._error: BrokenStreamError | None = None

    def read(self, size: int, /) -> bytes:
        while not self._error:
            if self._held and (self._stream is None or self._is_checked):
                break
            try:
                if self._num_held > HELD_BACK:
                    if self._origin is None:
                        break
                    self._check()
                    continue
                if self._stream is None and not self._begin():
                    return b""
                output = self._decompress(min(size, STEP))
            except BrokenStreamError as error:
                self._error = error
            else:
                self._held += [output] if output else []
                self._num_held += len(output)
        if not self._held and self._error:
            raise self._error
        if not self._held:
            return b""
        output = self._held.popleft()
        if len(output) > size:
            self._held.appendleft(output[size:])
            output = output[:size]
        self._num_held -= len(output)
        self._num_returned += len(output)
        return output

    def _check(self) -> None:
        """Looks at the stream in hand to its end, and comes back. A short one is not damaged."""
        assert self._origin is not None
        self._is_checked = True
        place, stream = self._file.tell(), self._new()
        self._file.seek(self._origin + self._start)
        try:
            while not stream.eof:
                data = self._file.read(self._step) if stream.needs_input else b""
                if stream.needs_input and not data:
                    break
                stream.decompress(data, STEP)
        except _ERRORS as error:
            raise self._damaged(error) from None
        finally:
            self._file.seek(place)

    def _damaged(self, error: Exception) -> BrokenStreamError:
        detail = f"{self._kind}, the stream from byte {self._start}: {error}; nothing of it is used"
        if self._num_returned:
            detail += f" but its first {self._num_returned} bytes of text, which may be wrong"
        self._held.clear()
        self._num_held = 0
        return BrokenStreamError("damaged_archive", detail)

    def _take(self) -> bytes:
        data, self._pending = self._pending or self._file.read(self._step), b""
        self._taken += len(data)
        return data

    def _put_back(self, data: bytes) -> None:
        self._pending = data
        self._taken -= len(data)

    def _begin(self) -> bool:
        """Whether one more stream follows. Zeros after a stream may be padding."""
        zeros = 0
        while data := self._take():
            rest = data.lstrip(b"\0") if self._padding else data
            zeros += len(data) - len(rest)
            if rest:
                self._put_back(rest)
                break
        if zeros and zeros % self._padding:
            detail = f"{zeros} zero bytes before byte {self._taken}, after an {self._kind} stream"
            raise BrokenStreamError("damaged_archive", detail)
        if self._pending:
            self._stream, self._start = self._new(), self._taken
            self._is_checked, self._num_returned = False, 0
        return bool(self._pending)

    def _decompress(self, size: int) -> bytes:
        stream = self._stream
        data = self._take() if stream.needs_input else b""
        if stream.needs_input and not data:
            raise BrokenStreamError("truncated_archive", f"the {self._kind} stream ends early")
        try:
            output = stream.decompress(data, size)
        except _ERRORS as error:
            raise self._damaged(error) from None
        if stream.eof:
            self._put_back(stream.unused_data)
            self._stream = None
        return output

    def close(self) -> None:
        self._file.close()
