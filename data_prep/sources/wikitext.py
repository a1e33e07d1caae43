"""Source ``wikitext``: WikiText's ``wiki.*.tokens`` and ``.raw``; a document is an article.

A line `` = Title = `` after a blank line starts an article; `` = = Section = = `` does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from data_prep.sources.base import InputFile, Part, Piece
from data_prep.sources.blank_lines import LOOK_BACK, WINDOW
from data_prep.sources.options import SourceOptions
from data_prep.sources.ranges import (
    RecordEnds,
    in_batches,
    range_parts,
    read_records,
    stream_pieces,
)
from data_prep.sources.streams import CHUNK, COMPRESSED
from data_prep.text.batch import RawBatch, Recorder

_FIRST_TITLE = re.compile(rb"[ \t\r]*?(?P<title> = (?!=)[^\n]*[^=\n] = \r?\n)")
# without an alternative at its start, re looks for its first character fast
_TITLE = re.compile(rb"\n" + _FIRST_TITLE.pattern)
_BLANK = b" \t\r\n"
_LONGEST_TITLE = 1 << 16
_JOINED = re.compile(rb" @([-,.])@ ")
_BEFORE = re.compile(rb" ([.,;:!?%)\]}]|'s\b|n't\b|'re\b|'ve\b|'ll\b|'d\b|'m\b)")
_AFTER = re.compile(rb"([(\[{$]|\xc2\xa3) ")
_QUOTED = re.compile(rb'" ([^"\n]*?) "')
_HEADING = re.compile(rb"^ ?((?:= )+)(.*?) (?:= ?)+$", re.MULTILINE)


def _titles(data: bytes, start: int = 0) -> list[int]:
    """Where articles begin; a first line that looks like a title is taken for one."""
    first = None if start else _FIRST_TITLE.match(data)
    titles = [first.start("title")] if first else []
    places = (match.start("title") for match in _TITLE.finditer(data, start))
    return titles + [place for place in places if _is_after_blank_line(data, place)]


def _is_after_blank_line(data: bytes, place: int) -> bool:
    """Whether the line before is blank."""
    line = data.rfind(b"\n", 0, place) + 1
    before = data.rfind(b"\n", 0, line - 1) + 1 if line else 0
    return not data[before:place].strip(_BLANK)


def last_title(data: bytes) -> int:
    """Where the last article begins, or 0."""
    window = WINDOW
    while True:  # from the end, in linear time
        start = max(len(data) - window, 0)
        last = max(_titles(data, start), default=0)
        if last or not start:
            return last
        window *= 2


def first_title(file: BinaryIO, at: int) -> int | None:
    """The first place >= ``at`` at which an article begins, or None."""
    start = max(at - LOOK_BACK, 0)
    file.seek(start)
    carried = b"" if start == 0 else b"."  # the start of a file is a blank line, no other place is
    start -= len(carried)
    while chunk := file.read(CHUNK):
        data = carried + chunk
        for place in _titles(data):
            if start + place >= at:
                return start + place
        carried = _open_lines(data)
        start += len(data) - len(carried)
    return None


def _open_lines(data: bytes) -> bytes:
    """The end of some bytes that a title may begin in: what was before is blank or it is not."""
    line = data.rfind(b"\n") + 1
    if line == 0:
        return data if len(data) <= _LONGEST_TITLE else b"."
    before = data.rfind(b"\n", 0, line - 1) + 1
    return (b".\n" if data[before:line].strip() else b"\n") + data[line:]


TITLES = RecordEnds(first_title, last_title)


class WikiTextSource:
    """See the module."""

    name = "wikitext"
    summary = "WikiText .tokens or .raw; a document is an article (--detokenize undoes ' @-@ ')"
    suffixes = tuple(s + c for s in (".tokens", ".raw", ".txt") for c in ("", *COMPRESSED))

    def parts(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a byte range; articles belong to the range that they begin in."""
        for file in files:
            yield from range_parts(file, options)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""

        def documents(data: bytes, offset: int) -> Iterator[RawBatch]:
            return _articles(data, offset, part.path, options)

        yield from read_records(part, TITLES, documents, options, recorder)

    def pieces(self, part: Part, options: SourceOptions) -> Iterator[Piece]:
        """See Source.pieces."""
        return stream_pieces(part.path, TITLES, options)


def _articles(data: bytes, offset: int, path: str, options: SourceOptions) -> Iterator[RawBatch]:
    starts = sorted({0, *_titles(data)})
    articles = [
        (offset + start, data[start:stop])
        for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)
    ]
    if offset == 0 and not articles[0][1].strip():
        del articles[0]  # the blank line that every file begins with
    if options.detokenize:
        articles = [(place, detokenize(article)) for place, article in articles]
    yield from in_batches(articles, path)


def detokenize(text: bytes) -> bytes:
    """Undo WikiText's tokenization: `` @-@ ``, spaces around punctuation and quotes, headings."""
    text = _JOINED.sub(rb"\1", text)
    text = _HEADING.sub(rb"\2", text)
    text = _QUOTED.sub(rb'"\1"', text)
    return _AFTER.sub(rb"\1", _BEFORE.sub(rb"\1", text))
