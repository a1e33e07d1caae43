"""What a command says beside its results: on standard error, and nothing under --quiet.

Results go to standard output; errors and warnings are always said.
"""

import os
import sys
from typing import TextIO

_quiet = False


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
