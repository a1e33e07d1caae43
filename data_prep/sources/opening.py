"""Text files opened as UTF-8, whatever compression and encoding they are in."""

from __future__ import annotations

from data_prep.sources.base import Part
from data_prep.sources.options import SourceOptions
from data_prep.sources.streams import BrokenStreamError, compression_of, open_stream
from data_prep.text.batch import Recorder
from data_prep.text.encodings import (
    ASCII_BYTES,
    SAMPLE_BYTES,
    UTF8,
    Detected,
    as_utf8,
    decoder,
    detect_encoding,
    telling_part,
)


class TextStream:
    """A ByteStream of the text of a file as UTF-8; ``detected`` is the encoding of the file.

    is_plain: the file is plain UTF-8. is_empty: it has no bytes. trusted: it is known to be UTF-8.
    """

    def __init__(self, path: str, declared: str, trusted: bool = False):
        self._stream = open_stream(path)
        self._error: BrokenStreamError | None = None
        self._sample, ended = (b"", False) if trusted else self._read_sample()
        self.is_empty = not self._sample and ended and not self._error
        telling, to_the_end = telling_part(self._sample)
        self.detected = (
            Detected(UTF8) if trusted else detect_encoding(telling, declared, ended and to_the_end)
        )
        encoding = self.detected.encoding
        self._decoder = decoder(encoding) if encoding not in ("", UTF8) else None
        self.is_plain = self._decoder is None and compression_of(path) is None

    def _read_sample(self) -> tuple[bytes, bool]:
        """(the first SAMPLE_BYTES, more while all is ASCII; whether the file ends there)."""
        chunks: list[bytes] = []
        size, is_ascii, wanted = 0, True, SAMPLE_BYTES
        try:
            while size < wanted:
                data = self._stream.read(wanted - size)
                if not data:
                    return b"".join(chunks), True
                chunks.append(data)
                size += len(data)
                is_ascii = is_ascii and data.isascii()
                if is_ascii and size == wanted < ASCII_BYTES:
                    wanted += SAMPLE_BYTES
        except BrokenStreamError as error:
            self._error = error  # raised by read, after the sample
        return b"".join(chunks), False

    def read(self, size: int, /) -> bytes:
        """See ByteStream; decoded text may be more than ``size`` bytes."""
        while True:
            data = self._read(size)
            if self._decoder is None:
                return data
            text = as_utf8(self._decoder.decode(data, final=not data))
            if text or not data:
                return text

    def _read(self, size: int) -> bytes:
        if self._sample:
            data, self._sample = self._sample[:size], self._sample[size:]
            return data
        if self._error:
            raise self._error
        return self._stream.read(size)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def open_text(part: Part, options: SourceOptions, recorder: Recorder) -> TextStream | None:
    """The file of a part; None, and a record, when it is empty or no text.

    Temporary files, which have an origin, are UTF-8.
    """
    stream = TextStream(part.path, options.encoding, trusted=bool(part.origin))
    detected = stream.detected
    if stream.is_empty:
        recorder.drop("empty_file", part.path, 0)
    elif detected.reason:
        recorder.drop(detected.reason, part.path, 0, detected.detail)
    else:
        if detected.encoding != UTF8:
            recorder.file_decoded(part.path, 0, detected.encoding)
        return stream
    stream.close()
    return None


def is_plain_text(path: str, options: SourceOptions) -> bool:
    """Whether a file is plain UTF-8 text, which can be cut into byte ranges."""
    stream = TextStream(path, options.encoding)
    stream.close()
    return stream.is_plain and not stream.detected.reason
