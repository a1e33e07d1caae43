"""What a command says beside its results: on standard error, and nothing under --quiet.

Results go to standard output; errors and warnings are always said.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

_quiet = False
_NOBODY_LISTENS = (errno.EPIPE, errno.EIO, errno.ENXIO, errno.ECONNRESET)
"""A pipe without a reader, a terminal that is gone."""


def be_quiet(quiet: bool = True) -> None:
    """Sets whether progress and talk are left out; one choice for the process."""
    global _quiet
    _quiet = quiet


def shows_bars() -> bool:
    """Whether progress bars are wanted: on a terminal, unless quiet."""
    return not _quiet and sys.stderr.isatty()


def say(line: str) -> None:
    """A line on standard error, unless quiet."""
    if not _quiet:
        print(line, file=sys.stderr, flush=True)


def stream() -> TextIO:
    """Where a long run writes its bar or lines."""
    return open(os.devnull, "w") if _quiet else sys.stderr


class _Outliving:
    """A stream whose writing never fails: where nobody listens any more, nothing is said."""

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
        """Hands on what was written, or drops it."""
        self._try(self._stream.flush)

    def _try(self, action: Any, *arguments: Any) -> None:
        try:
            action(*arguments)
        except OSError as error:  # also a full disk, where the output goes to a file
            if error.errno in _NOBODY_LISTENS:
                self._be_silent()

    def _be_silent(self) -> None:
        """Everybody's writing ends here, that of libraries and of the interpreter's end too."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def outliving_the_terminal() -> Iterator[None]:
    """Inside, a closed pipe or terminal is no error: what is said to it is lost, the run is not."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Outliving(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
