"""Source ``wikitext``: WikiText's ``wiki.*.tokens`` and ``.raw``; a document is an article.

A line `` = Title = `` after a blank line starts an article; `` = = Section = = `` does not.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator

from data_prep.batch import RawBatch, Recorder
from data_prep.sources.base import InputFile, Part, SourceOptions
from data_prep.sources.long_documents import MAX_DOCUMENT_BYTES, cut_point
from data_prep.sources.ranges import RANGE_BYTES, is_readable

_TITLE = re.compile(rb"^[ \t\r]*?(?P<title> = (?!=)[^\n]*[^=\n] = \r?\n)", re.MULTILINE)
_JOINED = re.compile(rb" @([-,.])@ ")
_BEFORE = re.compile(rb" ([.,;:!?%)\]}]|'s\b|n't\b|'re\b|'ve\b|'ll\b|'d\b|'m\b)")
_AFTER = re.compile(rb"([(\[{$]|\xc2\xa3) ")
_QUOTED = re.compile(rb'" ([^"\n]*?) "')
_HEADING = re.compile(rb"^ ?((?:= )+)(.*?) (?:= ?)+$", re.MULTILINE)


class WikiTextSource:
    """See the module."""

    name = "wikitext"
    summary = "WikiText .tokens or .raw; a document is an article (--detokenize undoes ' @-@ ')"
    suffixes = (".tokens", ".raw", ".txt")

    def plan(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a byte range; articles belong to the range that they begin in."""
        for file in files:
            for start in range(0, file.num_bytes, RANGE_BYTES):
                stop = min(start + RANGE_BYTES, file.num_bytes)
                yield Part(file.path, stop - start, start, stop)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        if not is_readable(part, recorder):
            return
        with open(part.path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with data:
                for start, stop in _articles(data, part):
                    if stop - start > MAX_DOCUMENT_BYTES:
                        recorder.count("documents_cut_too_long")
                    while stop - start > MAX_DOCUMENT_BYTES:
                        cut = start + cut_point(data[start : start + MAX_DOCUMENT_BYTES + 4])
                        yield from _documents(data[start:cut], start, part.path, options)
                        start = cut
                    yield from _documents(data[start:stop], start, part.path, options)


def _articles(data: mmap.mmap, part: Part) -> Iterator[tuple[int, int]]:
    """Ranges of the articles that begin in a part; what stands before the first is one too."""
    size = len(data)
    stop = size if part.stop is None else part.stop
    start = 0 if part.start == 0 else _next_title(data, part.start)
    while start < stop:
        end = _next_title(data, start + 1)
        yield start, end
        start = end


def _next_title(data: mmap.mmap, at: int) -> int:
    """Where the first title at ``at`` or later begins, or the end of the file."""
    place = max(at - 64, 0)  # its line may begin before ``at``
    while match := _TITLE.search(data, place):
        if match.start("title") >= at and _is_after_blank_line(data, match.start()):
            return match.start("title")
        place = match.start("title") + 1
    return len(data)


def _is_after_blank_line(data: mmap.mmap, line: int) -> bool:
    before = data.rfind(b"\n", 0, line - 1) + 1 if line else 0
    return not data[before:line].strip()


def _documents(
    article: bytes, offset: int, path: str, options: SourceOptions
) -> Iterator[RawBatch]:
    if options.detokenize:
        article = detokenize(article)
    if offset == 0 and not article.strip():
        return  # the blank line that every file begins with
    yield RawBatch.join([article], path, [offset])


def detokenize(text: bytes) -> bytes:
    """Undo WikiText's tokenization: `` @-@ ``, spaces around punctuation and quotes, headings."""
    text = _JOINED.sub(rb"\1", text)
    text = _HEADING.sub(rb"\2", text)
    text = _QUOTED.sub(rb'"\1"', text)
    return _AFTER.sub(rb"\1", _BEFORE.sub(rb"\1", text))
