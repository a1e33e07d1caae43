"""Source ``treebank``: bracketed trees; a document is the words of a tree, as one sentence.

Penn Treebank files (.mrg, a tree over several lines, an empty outer bracket) and a tree a line.
Empty elements (-NONE-) are left out; -LRB- and the like become brackets again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from data_prep.batch import RawBatch, Recorder
from data_prep.sources.base import InputFile, Part, SourceOptions
from data_prep.sources.ranges import in_batches, is_readable
from data_prep.sources.streams import CHUNK, COMPRESSED, BrokenStreamError, open_stream, text_weight

_TOKEN = re.compile(rb"\(|\)|[^\s()]+")
_BRACKETS = {
    b"-LRB-": b"(", b"-RRB-": b")", b"-LSB-": b"[", b"-RSB-": b"]", b"-LCB-": b"{", b"-RCB-": b"}",
}  # fmt: skip
_LONGEST_TREE = 1 << 20


class TreebankSource:
    """See the module."""

    name = "treebank"
    summary = "bracketed trees (PTB .mrg, or a tree a line); a document is the words of a tree"
    suffixes = tuple(s + c for s in (".mrg", ".ptb", ".trees", ".txt") for c in ("", *COMPRESSED))
    segmenter = "none"  # a tree is one sentence

    def plan(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a file."""
        for file in files:
            yield Part(file.path, text_weight(file.path, file.num_bytes))

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        if is_readable(part, recorder):
            yield from in_batches(_sentences(part, recorder), part.path)


def _sentences(part: Part, recorder: Recorder) -> Iterator[tuple[int, bytes]]:
    """(place, words) of each tree."""
    for place, tree in _trees(part, recorder):
        found = words_of(tree)
        if found is None:
            recorder.drop("bad_tree", part.path, place, tree[:60].decode(errors="replace"))
        else:
            yield place, b" ".join(found)


def _trees(part: Part, recorder: Recorder) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of each balanced bracketing; unbalanced ends are recorded."""
    stream = open_stream(part.path)
    held, offset, depth, looked = b"", 0, 0, 0
    try:
        while data := stream.read(CHUNK):
            held += data
            start = 0
            for match in re.finditer(rb"[()]", held[looked:]):
                place = looked + match.start()
                if match.group() == b"(":
                    start = place if depth == 0 else start
                    depth += 1
                elif depth == 0:
                    recorder.drop("bad_tree", part.path, offset + place, "a bracket too many")
                    start = place + 1
                else:
                    depth -= 1
                    if depth == 0:
                        yield offset + start, held[start : place + 1]
                        start = place + 1
            offset += start
            held = held[start:]
            looked = len(held)
            if looked > _LONGEST_TREE:
                recorder.drop("bad_tree", part.path, offset, "a bracket that is never closed")
                return
    except BrokenStreamError as error:
        recorder.drop(error.reason, part.path, offset, error.detail)
        return
    finally:
        stream.close()
    if held.strip():
        recorder.drop("bad_tree", part.path, offset, "the file ends inside a tree")


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
            words.append(_BRACKETS.get(token, token))
    return words
