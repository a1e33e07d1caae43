"""The lines of a text, each a sentence, in chunks; unfit ones are named by their numbers."""

from __future__ import annotations

import codecs
import io
import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from gpst.api import GPST

BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
_READ_BYTES = 1 << 16
_UNDECODABLE = "surrogateescape"
"""Bytes that are no UTF-8 make a line unfit, not the file."""


class InputError(ValueError):
    """The text to work on cannot be used."""


class NoInputError(InputError):
    """There is no text to work on: no such file, or nothing in it."""


@dataclass(frozen=True)
class Line:
    """A line of the input."""

    number: int
    """From 1; blank lines count."""
    text: str
    """Without white space around it; empty for a blank line, or one that was left out."""


@dataclass
class Lines:
    """The lines of a file (or of standard input, `-`), in chunks that are worked on at once.

    Chunks begin with one line and grow, so that the first results come at once and later ones in
    full batches. Of standard input a chunk holds what has come so far: a program that writes a line
    and waits gets its answer.

    Args:
        most: lines of a chunk.
        on_unfit: hears of a line that is unfit, which is left out; None: it is an error.
    """

    path: str
    model: GPST
    most: int
    on_unfit: Callable[[str], object] | None = None
    num_skipped: int = field(default=0, init=False)

    def chunks(self) -> Iterator[list[Line]]:
        """
        Raises:
            NoInputError: the file cannot be read, or has no sentence.
            InputError: it is no text; an unfit line, unless those are skipped.
        """
        number, empty = 0, True
        try:
            with _opened(self.path) as stream:
                for texts in self._grow(stream) if _is_file(stream) else self._come(stream):
                    chunk, error = self._until_unfit(texts, number)
                    number += len(texts)
                    empty = empty and not any(line.text for line in chunk)
                    if chunk:
                        yield chunk
                    if error:
                        raise error
        except OSError as error:
            raise NoInputError(f"cannot read {self.path}: {error.strerror}") from error
        if empty and not self.num_skipped:
            name = "standard input" if self.path == "-" else self.path
            raise NoInputError(f"{name} holds no sentence; give one a line")

    def _grow(self, stream: TextIO) -> Iterator[list[str]]:
        size = 1
        while texts := list(islice(stream, size)):
            yield texts
            size = min(2 * size, self.most)

    def _come(self, stream: TextIO) -> Iterator[list[str]]:
        """Waits only where nothing has come; what has is read without the stream's own buffer."""
        number = stream.fileno()
        decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder(stream.encoding)(stream.errors or "strict"), True
        )
        lines: list[str] = []
        rest, ended = "", False
        with _signals_end_waits() as told:
            while lines or not ended:
                while not ended and (not lines or (len(lines) < self.most and _has_come(number))):
                    while number not in select.select([number, *told], [], [])[0]:
                        os.read(told[0], _READ_BYTES)  # a signal that ends nothing
                    data = os.read(number, _READ_BYTES)
                    ended = not data
                    *whole, rest = (rest + decoder.decode(data, final=ended)).split("\n")
                    lines += whole
                    if ended and rest:
                        lines.append(rest)
                if lines:
                    yield lines[: self.most]
                    lines = lines[self.most :]

    def count(self) -> int | None:
        """The number of lines, where it can be known before they are read."""
        try:
            with open(self.path, "rb") as stream:
                return sum(1 for _ in stream) if _is_file(stream) else None
        except OSError:
            return None

    def _until_unfit(self, texts: list[str], before: int) -> tuple[list[Line], InputError | None]:
        """The lines before one that ends the work, and its error; `before`: lines before these."""
        chunk: list[Line] = []
        for number, text in enumerate(texts, before + 1):
            try:
                chunk.append(self._checked(number, text))
            except InputError as error:
                return chunk, error
        return chunk, None

    def _checked(self, number: int, line: str) -> Line:
        if "\0" in line:
            raise InputError(f"{self.path} is no text: line {number} holds a NUL character")
        text = (line.removeprefix(BOM) if number == 1 else line).strip()
        try:
            if text:
                self.model.sentence(text)
        except ValueError as error:
            undecodable = isinstance(error, UnicodeEncodeError)
            reason = "it is not UTF-8 text" if undecodable else " ".join(str(error).split())
            if self.on_unfit is None:
                raise InputError(f"line {number}: {reason}") from error
            self.on_unfit(f"line {number} is left out: {reason}")
            self.num_skipped += 1
            text = ""
        return Line(number, text)


def standard_input() -> TextIO:
    """Standard input, in whose text surrogates stand for bytes that are no UTF-8.

    Raises:
        NoInputError: it is closed.
    """
    if sys.stdin is None:
        raise NoInputError("standard input is closed; give a file, or text through a pipe")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors=_UNDECODABLE)
    return sys.stdin


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield standard_input()
    else:
        with open(path, encoding="utf-8", errors=_UNDECODABLE) as stream:
            yield stream


def _is_file(stream: IO[Any]) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # not of the system: a test's
        return True


@contextmanager
def _signals_end_waits() -> Iterator[list[int]]:
    """What to wait for beside the input: a pipe into which each signal is written.

    One that comes between Python's last look and the wait itself would else be heard after it,
    which may be never.
    """
    try:
        before = signal.set_wakeup_fd(-1)
    except ValueError:  # not the main thread, which alone hears signals
        yield []
        return
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    try:
        yield [told]
    finally:
        signal.set_wakeup_fd(before)
        os.close(told)
        os.close(tell)


def _has_come(number: int) -> bool:
    """Whether reading would not wait."""
    return bool(select.select([number], [], [], 0)[0])
