"""Errors of data preparation. Each carries one line for the user and the exit code of a command.

Exit codes of ``python -m data_prep``: 0 success, 2 usage, 3 data, 130 interrupted.
"""

from __future__ import annotations

import errno
from pathlib import Path

EXIT_USAGE = 2
EXIT_DATA = 3
EXIT_INTERRUPTED = 130


class DataPrepError(Exception):
    """Base of this package's errors. The message is one line: the thing, its value, the cure."""

    exit_code = EXIT_DATA


class UsageError(DataPrepError):
    """Wrong arguments, missing paths, an output directory that belongs to something else."""

    exit_code = EXIT_USAGE


class SourceError(DataPrepError):
    """Input that cannot be read as the chosen source."""


class TokenizerError(DataPrepError):
    """A tokenizer that is missing, broken, or does not fit the dataset."""

    exit_code = EXIT_USAGE


class DatasetError(DataPrepError):
    """A dataset directory that is unfinished, of another format version, or damaged."""


def is_full_disk(error: OSError) -> bool:
    """No space left, or no more of a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def unwritable(output: Path, error: OSError) -> DataPrepError:
    """The error of an output that cannot be written: a full disk is not a wrong argument."""
    if is_full_disk(error):
        return DataPrepError(
            f"no space left for {output}; free some and run the same command again"
        )
    return UsageError(f"output {output} cannot be written: {error.strerror or error}")


class InterruptedRunError(DataPrepError):
    """SIGTERM or Ctrl-C; the work done so far is kept, and the same command continues it."""

    exit_code = EXIT_INTERRUPTED
