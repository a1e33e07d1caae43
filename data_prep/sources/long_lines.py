"""JSON lines of tens of megabytes in little memory: the long string of a line, piece by piece.

Python's parser stores a line several times, at up to four bytes a character. Here the long strings
of a line are replaced by short marks, the rest is parsed as usual, and the string that is the text
is decoded a megabyte at a time.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator

LONG_LINE = 4 << 20  # lines from here on are read this way
LONG_STRING = 1 << 16
LONGEST_REST = 8 << 20  # of a line beside its long strings
PIECE_BYTES = 1 << 20
_MARK = f"long string {secrets.token_hex(16)} "
_QUOTE, _BACKSLASH = b'"', b"\\"
# an escape; the two of a surrogate pair are one
_ESCAPE = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u.{4}|\\.?", re.DOTALL)


class LongLine:
    """A line ``data[start:end]`` of JSON.

    rest: the line with marks in place of its long strings; None when that is still too long.
    """

    def __init__(self, data: bytes, start: int, end: int):
        self._data = data
        self._strings: list[tuple[int, int]] = []
        parts: list[bytes] = []
        place = at = start
        while (quote := data.find(_QUOTE, at, end)) >= 0:
            stop = _string_end(data, quote + 1, end)
            if stop - quote > LONG_STRING:
                parts += (data[place:quote], json.dumps(self._mark(len(self._strings))).encode())
                self._strings.append((quote + 1, stop))
                place = stop + 1
            at = stop + 1
        short = sum(map(len, parts)) + end - place <= LONGEST_REST
        self.rest = b"".join([*parts, data[place:end]]) if short else None

    @staticmethod
    def _mark(number: int) -> str:
        return f"{_MARK}{number}"

    def pieces(self, text: str) -> Iterator[str] | None:
        """The pieces of the string that ``text`` is the mark of, or None when it is no mark.

        They raise ValueError where the string is not valid JSON.
        """
        if not text.startswith(_MARK):
            return None
        return _decoded(self._data, *self._strings[int(text.removeprefix(_MARK))])


def _string_end(data: bytes, at: int, end: int) -> int:
    """The place of the quote that ends the string, or ``end``."""
    start = at
    while (quote := data.find(_QUOTE, at, end)) >= 0:
        first = quote
        while first > start and data[first - 1] == _BACKSLASH[0]:
            first -= 1
        if (quote - first) % 2 == 0:
            return quote
        at = quote + 1
    return end


def _decoded(data: bytes, at: int, end: int) -> Iterator[str]:
    while at < end:
        cut = _safe_cut(data, at, min(at + PIECE_BYTES, end), end)
        # bytes that are not UTF-8 pass through JSON as lone surrogates, for the cleaning to count
        yield json.loads(f'"{str(data[at:cut], "utf-8", "surrogateescape")}"')
        at = cut


def _safe_cut(data: bytes, start: int, at: int, end: int) -> int:
    """A place near ``at`` that is not inside a character, an escape, or a surrogate pair."""
    space = data.find(b" ", at, min(at + 4096, end))
    if space >= 0 or at == end:
        return space if space >= 0 else end
    place = start
    while (escape := data.find(_BACKSLASH, place, at)) >= 0:
        match = _ESCAPE.match(data, escape)
        place = match.end() if match else escape + 1
    place = max(place, at)
    while place < end and data[place] & 0xC0 == 0x80:
        place += 1
    return min(place, end)
