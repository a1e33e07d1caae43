"""Source ``jsonl``: a JSON object a line; a document is the text field of a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from data_prep.batch import RawBatch, Recorder
from data_prep.sources.base import InputFile, Part, SourceOptions
from data_prep.sources.ranges import (
    BATCH_BYTES,
    RANGE_BYTES,
    chunks,
    last_line_end,
    open_range,
)
from data_prep.sources.streams import (
    COMPRESSED,
    BrokenStreamError,
    compression_of,
    open_stream,
    text_weight,
)
from data_prep.sources.text import is_utf16


class JsonLinesSource:
    """See the module."""

    name = "jsonl"
    summary = "JSON lines, plain or .gz .xz .zst; a document is --text-field of a line"
    suffixes = tuple(s + c for s in (".jsonl", ".json", ".ndjson") for c in ("", *COMPRESSED))

    def plan(
        self, files: Sequence[InputFile], options: SourceOptions, scratch: Path
    ) -> Iterable[Part]:
        """A part is a compressed file, or a byte range of a plain one."""
        for file in files:
            if file.num_bytes <= RANGE_BYTES or compression_of(file.path) is not None:
                yield Part(file.path, text_weight(file.path, file.num_bytes))
                continue
            for start in range(0, file.num_bytes, RANGE_BYTES):
                stop = start + RANGE_BYTES if start + RANGE_BYTES < file.num_bytes else None
                yield Part(file.path, RANGE_BYTES, start, stop)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        if Path(part.path).stat().st_size == 0:
            recorder.drop("empty_file", part.path, 0)
            return
        if is_utf16(part.path):
            detail = "UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8"
            recorder.drop("utf16_file", part.path, 0, detail)
            return
        if compression_of(part.path) is None:
            opened = open_range(part.path, part.start, part.stop, (b"\n",))
            if opened is None:
                return
            stream, offset = opened
        else:
            stream, offset = open_stream(part.path), 0
        seen = offset
        try:
            for at, data, _ in chunks(stream, offset, last_line_end):
                seen = at + len(data)
                yield from _documents(data, at, part.path, options.text_field, recorder)
        except BrokenStreamError as error:
            recorder.drop(error.reason, part.path, seen, error.detail)
        finally:
            stream.close()


def _documents(
    data: bytes, offset: int, path: str, field: str, recorder: Recorder
) -> Iterator[RawBatch]:
    documents: list[bytes] = []
    places: list[int] = []
    size = 0
    start, view = 0, memoryview(data)
    while start < len(data):
        end = data.find(b"\n", start)
        end = end if end >= 0 else len(data)
        text = _text_of(view[start:end], offset + start, path, field, recorder)
        if text is not None:
            documents.append(text)
            places.append(offset + start)
            size += len(text)
        start = end + 1
        if size > BATCH_BYTES:
            yield RawBatch.join(documents, path, places)
            documents, places, size = [], [], 0
    if documents:
        yield RawBatch.join(documents, path, places)


def _text_of(
    line: memoryview, offset: int, path: str, field: str, recorder: Recorder
) -> bytes | None:
    """The text of one line as UTF-8, or None when the line is blank or dropped."""
    # bytes that are not UTF-8 pass through JSON as lone surrogates, for the cleaning to count
    decoded = str(line, "utf-8", "surrogateescape")
    if offset == 0:
        decoded = decoded.removeprefix("\ufeff")
    if not decoded or decoded.isspace():
        return None
    try:
        record = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        detail = str(error)
        if offset == 0 and decoded.lstrip()[:1] == "[":
            detail = "an array, not an object a line; convert it: jq -c '.[]' FILE"
        recorder.drop("bad_json", path, offset, detail)
        return None
    del decoded  # it may be large
    if not isinstance(record, dict):
        recorder.drop("not_a_json_object", path, offset, f"a {type(record).__name__}")
        return None
    text = record.get(field)
    if not isinstance(text, str):
        known = ", ".join(list(record)[:8])
        reason = "missing_text_field" if text is None else "text_field_is_not_a_string"
        recorder.drop(reason, path, offset, f"field {field!r}; the line has: {known}")
        return None
    return encode_text(text)


def encode_text(text: str) -> bytes:
    """UTF-8; lone surrogates become bytes that are not UTF-8, so that they are counted as bad."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        # an escaped byte gives itself back; any other surrogate its three (invalid) bytes
        return b"".join(
            bytes([ord(c) - 0xDC00])
            if 0xDC80 <= ord(c) <= 0xDCFF
            else c.encode("utf-8", "surrogatepass")
            for c in text
        )
