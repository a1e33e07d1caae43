"""A reader of tar streams: members as ranges of a buffer, without a Python object a member."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.sources.streams import BrokenStreamError, ByteStream

BLOCK = 512
READ_BYTES = 1 << 20
_REGULAR, _OLD_REGULAR, _LONG_NAME, _PAX, _PAX_GLOBAL = b"0", b"\0", b"L", b"x", b"g"


@dataclass(frozen=True)
class Member:
    """A regular file of an archive: ``buffer[start:stop]``; offset: of its data in the archive."""

    name: str
    buffer: bytes
    start: int
    stop: int
    offset: int


def _checksum_fits(header: bytes) -> bool:
    try:
        stored = int(header[148:156].strip(b"\0 ") or b"0", 8)
    except ValueError:
        return False
    return stored == sum(header) - sum(header[148:156]) + 8 * 32


def _size_of(header: bytes) -> int:
    if header[124] & 0x80:  # base 256, for members of 8 GiB and more
        return int.from_bytes(header[125:136], "big")
    digits = header[124:136].strip(b"\0 ") or b"0"
    if not digits.isdigit() or max(digits) > ord("7"):
        raise BrokenStreamError("damaged_archive", f"no size in a tar header: {digits!r}")
    return int(digits, 8)


class _Window:
    """A part of a stream in memory. An error of the stream is raised after its last bytes."""

    def __init__(self, stream: ByteStream):
        self._stream = stream
        self._error: BrokenStreamError | None = None
        self._ended = False
        self.buffer, self.at, self.offset = b"", 0, 0  # offset: of buffer[0] in the stream

    def has(self, need: int) -> bool:
        """Whether the stream has ``need`` more bytes; reads them into the buffer."""
        if len(self.buffer) - self.at < need and not self._ended:
            chunks = [self.buffer[self.at :]]
            length = len(chunks[0])
            while length < need + READ_BYTES and (data := self._read()):
                chunks.append(data)
                length += len(data)
            self.offset += self.at
            self.buffer, self.at = b"".join(chunks), 0
        return len(self.buffer) - self.at >= need

    def skip(self, count: int) -> None:
        """Skip bytes without storing them."""
        while count > 0 and self.has(1):
            step = min(count, len(self.buffer) - self.at)
            self.at += step
            count -= step

    def _read(self) -> bytes:
        try:
            data = self._stream.read(READ_BYTES)
        except BrokenStreamError as error:
            self._error, data = error, b""
        self._ended = not data
        return data

    def fail(self, detail: str) -> BrokenStreamError:
        """The stream's own error, or that the archive ends early."""
        return self._error or BrokenStreamError("truncated_archive", detail)

    @property
    def broken(self) -> bool:
        """The stream ended with an error."""
        return self._error is not None


def read_members(stream: ByteStream, max_bytes: int) -> Iterator[Member]:
    """The regular files of a tar stream, in order.

    A member larger than ``max_bytes`` comes with start == stop == -1 and without its data. Raises
    BrokenStreamError when the archive is empty, ends early or a header is damaged; whole members
    come first.
    """
    window = _Window(stream)
    if not window.has(1) and not window.broken:
        raise BrokenStreamError("empty_file", "an archive of no bytes")
    long_name: str | None = None
    while window.has(BLOCK):
        header = window.buffer[window.at : window.at + BLOCK]
        window.at += BLOCK
        if not any(header):
            continue  # empty blocks end an archive; another one may follow
        if not _checksum_fits(header):
            place = window.offset + window.at - BLOCK
            raise BrokenStreamError("damaged_archive", f"no tar header at {place}")
        size, kind = _size_of(header), header[156:157]
        padded = -(-size // BLOCK) * BLOCK
        regular = kind in (_REGULAR, _OLD_REGULAR)
        if regular and size > max_bytes:
            yield Member(_name_of(header, long_name), b"", -1, -1, window.offset + window.at)
            window.skip(padded)
            long_name = None
            continue
        if not window.has(size):
            raise window.fail("the tar archive ends in a member")
        start = window.at
        if kind == _LONG_NAME:
            long_name = window.buffer[start : start + size].rstrip(b"\0").decode(errors="replace")
        elif kind == _PAX:
            long_name = _pax_path(window.buffer[start : start + size]) or long_name
        elif kind != _PAX_GLOBAL:
            if regular:
                name = _name_of(header, long_name)
                yield Member(name, window.buffer, start, start + size, window.offset + start)
            long_name = None
        window.skip(padded)
    if window.broken or len(window.buffer) > window.at:
        raise window.fail("the tar archive ends in a header")


def _name_of(header: bytes, long_name: str | None) -> str:
    if long_name is not None:
        return long_name
    name = header[:100].rstrip(b"\0").decode(errors="replace")
    prefix = header[345:500].rstrip(b"\0").decode(errors="replace")
    return f"{prefix}/{name}" if header[257:262] == b"ustar" and prefix else name


def _pax_path(records: bytes) -> str | None:
    """The path of a pax header: records "LENGTH key=value\\n"."""
    while records:
        head, _, rest = records.partition(b" ")
        if not head.isdigit() or not len(head) < int(head) <= len(records):
            raise BrokenStreamError("damaged_archive", f"no pax record: {records[:20]!r}")
        length = int(head)
        key, _, value = rest[: length - len(head) - 1].rstrip(b"\n").partition(b"=")
        if key == b"path":
            return value.decode(errors="replace")
        records = records[length:]
    return None
