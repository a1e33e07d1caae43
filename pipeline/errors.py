"""Errors that a user can act on: one line that names the thing, the value and the cure.

ConfigError (the configuration or the command line is wrong) is gpst's. Any other exception that
escapes is a bug and keeps its traceback.
"""

import errno
import os
import signal
import sys
from typing import TextIO

from data_prep.errors import DataPrepError
from gpst.config_reader import ConfigError
from gpst.memory import allocation_failure

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ACCESS_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EISDIR, errno.ENOTDIR, errno.EEXIST),
)
_LESS_MEMORY = (
    "train.micro_batch_contexts_per_rank and engine.checkpointing decide what training takes (see "
    "--dry-run and docs/small_machines.md), batch sizes and beams what evaluation takes"
)
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_DATA = 3
EXIT_INTERRUPTED = 130


class PipelineError(Exception):
    """A failure with a cure.

    Args:
        message: one line naming the thing, its value and what to do about it.
        exit_code: exit status of the command; by default the class's.
    """

    exit_code: int = EXIT_FAILURE

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code


class DataError(PipelineError):
    """A dataset is damaged or cannot serve this run."""

    exit_code = EXIT_DATA


class CheckpointError(PipelineError):
    """A checkpoint is damaged, missing or belongs to another run."""

    exit_code = EXIT_DATA


class UnreadableError(CheckpointError):
    """A checkpoint that cannot be read for a reason that may pass: it stays as it is."""


class OtherVersionError(UnreadableError):
    """A checkpoint is of another version of this program: whole, but not for this one."""


class EarlyStop(BaseException):
    """A signal came before the first step: nothing was changed.

    SIGUSR1 (a time limit that is near) is no failure; SIGTERM is, as nothing was done.
    """

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name} before the first step; nothing was changed")
        self.exit_code = 0 if number == signal.SIGUSR1 else 128 + number


class TrainingError(PipelineError):
    """Training cannot go on (losses that stay non-finite, a rank that died)."""


def explain(error: BaseException) -> tuple[str, int] | None:
    """The one line and the exit code for an error a user can act on.

    Knows the errors of this package, of `data_prep` and of `gpst`.

    Returns:
        (line, exit code), or None for an unexpected error, which deserves its traceback.
    """
    line = " ".join(str(error).split())
    if isinstance(error, (PipelineError, DataPrepError, ConfigError, EarlyStop)):
        return line, error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", EXIT_INTERRUPTED
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        where = error.filename or "the output"
        return f"{where}: {error.strerror}; free some space, then start it again", EXIT_DATA
    if isinstance(error, OSError) and error.errno in _ACCESS_ERRORS and error.filename:
        return f"{error.filename}: {error.strerror}; mend that, then start it again", EXIT_DATA
    if failure := allocation_failure(error):
        return f"{failure}; {_LESS_MEMORY}", EXIT_FAILURE
    return None


def report(error: BaseException, program: str = "pipeline", stream: TextIO | None = None) -> int:
    """Writes the error's one line to `stream` (standard error) and returns its exit code.

    A reader of our output that has seen enough (`| head`) is no failure.

    Raises:
        the error itself, when it is not one that a user can act on.
    """
    if isinstance(error, BrokenPipeError):
        # Nothing may be written to the pipe when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    explained = explain(error)
    if explained is None:
        raise error
    line, code = explained
    print(f"{program}: {line}", file=stream or sys.stderr, flush=True)
    return code
