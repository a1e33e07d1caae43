"""Source ``jsonl``: a JSON object a line; a document is the text field of a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from data_prep.sources.base import InputFile, Part, Piece
from data_prep.sources.long_documents import cut_while_reading
from data_prep.sources.long_lines import LONG_LINE, LongLine
from data_prep.sources.options import SourceOptions
from data_prep.sources.ranges import (
    BATCH_BYTES,
    LINE_ENDS,
    range_parts,
    read_records,
    stream_pieces,
)
from data_prep.sources.streams import COMPRESSED
from data_prep.text.batch import RawBatch, Recorder

UTF8_MARK = b"\xef\xbb\xbf"
_ARRAY = "an array, not an object a line; convert it: jq -c '.[]' FILE"


class JsonLinesSource:
    """See the module."""

    name = "jsonl"
    summary = "JSON lines, plain or .gz .bz2 .xz .zst; a document is --text-field of a line"
    suffixes = tuple(s + c for s in (".jsonl", ".json", ".ndjson") for c in ("", *COMPRESSED))

    def parts(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a compressed file, or a byte range of a plain one."""
        for file in files:
            yield from range_parts(file, options)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""

        def documents(data: bytes, offset: int) -> Iterator[RawBatch]:
            return _documents(data, offset, part.path, options.text_field, recorder)

        yield from read_records(part, LINE_ENDS, documents, options, recorder)

    def pieces(self, part: Part, options: SourceOptions) -> Iterator[Piece]:
        """See Source.pieces."""
        return stream_pieces(part.path, LINE_ENDS, options)


def _documents(
    data: bytes, offset: int, path: str, field: str, recorder: Recorder
) -> Iterator[RawBatch]:
    documents: list[bytes] = []
    places: list[int] = []
    size = start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = end if end >= 0 else len(data)
        place = offset + start
        if place == 0 and data.startswith(UTF8_MARK):
            start = len(UTF8_MARK)
        is_long = end - start > LONG_LINE
        if documents and (is_long or size > BATCH_BYTES):
            yield RawBatch.join(documents, path, places)
            documents, places, size = [], [], 0
        if is_long:
            yield from _long_document(data, start, end, place, path, field, recorder)
        elif (text := _text_of(data[start:end], place, path, field, recorder)) is not None:
            documents.append(encode_text(text))
            places.append(place)
            size += len(documents[-1])
        start = end + 1
    if documents:
        yield RawBatch.join(documents, path, places)


def _long_document(
    data: bytes, start: int, end: int, place: int, path: str, field: str, recorder: Recorder
) -> Iterator[RawBatch]:
    """The text of a long line, cut into documents while it is decoded."""
    line = LongLine(data, start, end)
    if line.rest is None:
        detail = _ARRAY if data[start : start + 1] == b"[" else "beside the strings in it"
        recorder.drop("record_too_large", path, place, detail)
        return
    text = _text_of(line.rest, place, path, field, recorder)
    if text is None:
        return
    pieces = line.pieces(text)
    if pieces is None:
        yield RawBatch.join([encode_text(text)], path, [place])
        return
    try:
        for _ in pieces:
            pass  # all of it is valid, or none of it is taken
    except ValueError as error:
        recorder.drop("bad_json", path, place, str(error))
        return
    whole = (encode_text(piece) for piece in line.pieces(text) or ())
    for _, document in cut_while_reading(whole, recorder):
        yield RawBatch.join([document], path, [place])


def _text_of(line: bytes, offset: int, path: str, field: str, recorder: Recorder) -> str | None:
    """The text of one line, or None when the line is blank or dropped."""
    # bytes that are not UTF-8 pass through JSON as lone surrogates, for the cleaning to count
    decoded = str(line, "utf-8", "surrogateescape")
    if not decoded or decoded.isspace():
        return None
    try:
        record = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        detail = _ARRAY if offset == 0 and decoded.lstrip()[:1] == "[" else str(error)
        recorder.drop("bad_json", path, offset, detail)
        return None
    if not isinstance(record, dict):
        recorder.drop("not_a_json_object", path, offset, f"a {type(record).__name__}")
        return None
    text = record.get(field)
    if not isinstance(text, str):
        detail = f"the line has: {', '.join(list(record)[:8])}"
        if field in record:
            detail = f"it is {'null' if text is None else f'of type {type(text).__name__}'}"
        reason = "missing_text_field" if text is None else "text_field_is_not_a_string"
        recorder.drop(reason, path, offset, f"field {field!r}; {detail}")
        return None
    return text


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
