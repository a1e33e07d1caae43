"""Source ``treebank``: bracketed trees; a document is the words of a tree, as one sentence.

Penn Treebank files (.mrg, a tree over several lines, an empty outer bracket) and a tree a line.
Empty elements (-NONE-) are left out; -LRB- and the like become brackets again, "\\/" a slash. Lines
between trees that begin with #, %, ; or the Penn Treebank's *x* are comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from data_prep.sources.base import InputFile, Part
from data_prep.sources.opening import TextStream, open_text
from data_prep.sources.options import SourceOptions
from data_prep.sources.ranges import in_batches
from data_prep.sources.streams import CHUNK, COMPRESSED, BrokenStreamError, text_weight
from data_prep.text.batch import RawBatch, Recorder

_TOKEN = re.compile(rb"\(|\)|[^\s()]+")
_BRACKETS = {
    b"-LRB-": b"(", b"-RRB-": b")", b"-LSB-": b"[", b"-RSB-": b"]", b"-LCB-": b"{", b"-RCB-": b"}",
}  # fmt: skip
_ESCAPED = re.compile(rb"-[LR][RSC]B-|\\[/*]")
_BRACKET = re.compile(rb"[()]")
_COMMENT = re.compile(rb"(?:\xef\xbb\xbf)?\s*([#%;]|\*x\*)")
_BOM = b"\xef\xbb\xbf"
_LONGEST_TREE = 1 << 20


class TreebankSource:
    """See the module."""

    name = "treebank"
    summary = "bracketed trees (.mrg, .ptb, or a tree a line); a document is the words of a tree"
    suffixes = tuple(s + c for s in (".mrg", ".ptb", ".trees", ".txt") for c in ("", *COMPRESSED))
    segmenter = "none"  # a tree is one sentence

    def parts(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a file."""
        for file in files:
            yield Part(file.path, text_weight(file.path, file.num_bytes))

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        stream = open_text(part, options, recorder)
        if stream is not None:
            yield from in_batches(_sentences(part, stream, recorder), part.path)


def _sentences(part: Part, stream: TextStream, recorder: Recorder) -> Iterator[tuple[int, bytes]]:
    """(place, words) of each tree."""
    for place, tree in _trees(part, stream, recorder):
        words = words_of(tree)
        if words is None:
            recorder.drop("bad_tree", part.path, place, tree[:60].decode(errors="replace"))
        else:
            yield place, b" ".join(words)


def _trees(part: Part, stream: TextStream, recorder: Recorder) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of each balanced bracketing; other text is recorded."""
    cutter = _Cutter(part.path, recorder)
    try:
        while data := stream.read(CHUNK):
            yield from cutter.feed(data)
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, cutter.offset, error.detail)
        return
    finally:
        stream.close()
    yield from cutter.end()


class _Cutter:
    """Cuts a stream into balanced bracketings.

    After a tree that is never closed it starts again at the next line that begins with a bracket,
    and from then on takes each such line for the start of a tree: no more than one is lost.
    """

    def __init__(self, path: str, recorder: Recorder):
        self._path, self._recorder = path, recorder
        self._buffer, self._depth, self._looked = b"", 0, 0
        self._lines_begin_trees = False
        self.offset = 0
        """Of the buffer, in the file."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The trees that end in the next bytes of the stream."""
        self._buffer += data
        yield from self._scan()
        while len(self._buffer) > _LONGEST_TREE:
            yield from self._start_again("a bracket that is never closed")

    def end(self) -> Iterator[tuple[int, bytes]]:
        """The trees at the end of the stream."""
        while self._depth:
            yield from self._start_again("the file ends inside a tree")
        self._between(0, len(self._buffer))

    def _scan(self) -> Iterator[tuple[int, bytes]]:
        buffer, start, looked = self._buffer, 0, self._looked
        while match := _BRACKET.search(buffer, looked):
            place = match.start()
            if self._depth == 0 and _COMMENT.match(buffer, self._line_start(start, place), place):
                looked = buffer.find(b"\n", place)
                if looked < 0:
                    break  # the rest of the comment is still to come
                continue
            looked = place + 1
            if match.group() == b")":
                if self._depth == 0:
                    self._between(start, place)
                    self._drop(place, "a bracket too many")
                    start = place + 1
                    continue
                self._depth -= 1
                if self._depth == 0:
                    yield self.offset + start, buffer[start : place + 1]
                    start = place + 1
                continue
            if self._depth and self._lines_begin_trees and buffer[place - 1 : place] == b"\n":
                self._drop(start, "a bracket that is never closed")
                self._depth = 0
            elif self._depth == 0:
                self._between(start, place)
            start = place if self._depth == 0 else start
            self._depth += 1
        self._looked = (match.start() if match else len(buffer)) - start
        self._drop_before(start)

    def _line_start(self, start: int, place: int) -> int:
        return max(start, self._buffer.rfind(b"\n", start, place) + 1)

    def _start_again(self, detail: str) -> Iterator[tuple[int, bytes]]:
        """Drop the open tree, or the text without a bracket, and continue at the next line."""
        self._drop(0, detail if self._depth else "no bracket in it")
        line = self._buffer.find(b"\n(", 1)
        self._drop_before(line + 1 if line >= 0 else len(self._buffer))
        self._depth, self._looked, self._lines_begin_trees = 0, 0, True
        yield from self._scan()

    def _drop_before(self, size: int) -> None:
        self._buffer, self.offset = self._buffer[size:], self.offset + size

    def _between(self, start: int, stop: int) -> None:
        lines = self._buffer[start:stop].removeprefix(_BOM).split(b"\n")
        text = b"\n".join(line for line in lines if not _COMMENT.match(line)).strip()
        if text:
            shown = text[:60].decode(errors="replace")
            self._recorder.drop("text_outside_trees", self._path, self.offset + start, shown)

    def _drop(self, place: int, detail: str) -> None:
        self._recorder.drop("bad_tree", self._path, self.offset + place, detail)


def words_of(tree: bytes) -> list[bytes] | None:
    """The words of a bracketed tree in order, or None when it is malformed.

    A leaf is "(LABEL word)"; a bracket may have no label (the outer one of the Penn Treebank).
    """
    words: list[bytes] = []
    tokens = [match.group() for match in _TOKEN.finditer(tree)]
    for number, token in enumerate(tokens):
        if token in (b"(", b")") or tokens[number - 1] == b"(":
            continue  # a bracket, or a label
        label = tokens[number - 1]
        if number < 2 or tokens[number - 2] != b"(" or tokens[number + 1] != b")":
            return None  # a word that is not alone under a label
        if label != b"-NONE-":
            words.append(_ESCAPED.sub(_unescaped, token))
    return words


def _unescaped(match: re.Match[bytes]) -> bytes:
    return _BRACKETS.get(match.group()) or match.group()[1:]
