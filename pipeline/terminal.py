"""Progress messages: on standard error, and none under --quiet.

Results go to standard output; errors and warnings are always printed.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

_quiet = False
_NO_READER = (errno.EPIPE, errno.EIO, errno.ENXIO, errno.ECONNRESET)
"""Errors of a pipe without a reader and of a closed terminal."""


def be_quiet(quiet: bool = True) -> None:
    """Turns progress messages off for the whole process."""
    global _quiet
    _quiet = quiet


def shows_bars() -> bool:
    """Whether progress bars are wanted: on a terminal, unless quiet."""
    return not _quiet and sys.stderr.isatty()


def say(line: str) -> None:
    """Prints a line on standard error, unless quiet."""
    if not _quiet:
        print(line, file=sys.stderr, flush=True)


def stream() -> TextIO:
    """The stream for progress bars or lines."""
    return open(os.devnull, "w") if _quiet else sys.stderr


class _Outliving:
    """A stream whose writes never fail: without a reader they are dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text, or drops it."""
        self._try(self._stream.write, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Writes the lines, or drops them."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flushes, or drops the text."""
        self._try(self._stream.flush)

    def _try(self, action: Any, *arguments: Any) -> None:
        try:
            action(*arguments)
        except OSError as error:  # also a full disk, where the output goes to a file
            if error.errno in _NO_READER:
                self._be_silent()

    def _be_silent(self) -> None:
        """Sends the file descriptor to /dev/null, also for libraries and the interpreter's exit."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def outliving_the_terminal() -> Iterator[None]:
    """Inside, a closed pipe or terminal is not an error: output is lost, the run goes on."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Outliving(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
