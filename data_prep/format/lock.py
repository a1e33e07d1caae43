"""Locks on the work folder: one build at a time, and none beside the workers of a killed one.

The kernel lets a lock go when its holder ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from typing import IO

from data_prep.errors import UsageError

# how long to wait for what a build that was killed just now has left running
WAIT_S = 10.0
_BUILD, _WORKERS = "lock", "workers"
_held: dict[str, IO[str]] = {}  # of this worker process, by work folder


@contextmanager
def only_build(work: Path, output: str) -> Iterator[None]:
    """Hold the work folder for one build; waits a little, since a killed one may be ending.

    Raises UsageError when another build, or a worker of an earlier one, has it still.
    """
    if held := _held.pop(os.fspath(work), None):
        held.close()  # of this very process
    with open(work / _BUILD, "w") as file, open(work / _WORKERS, "w") as workers:
        _lock(file, f"output {output}: another build is writing to it")
        _lock(workers, f"output {output}: workers of an earlier build are still going; end them")
        fcntl.flock(workers, fcntl.LOCK_UN)  # from now on it is for this build's workers
        if not is_there(file, work / _BUILD):
            raise UsageError(f"output {output}: another build has just ended; run this again")
        yield


def _lock(file: IO[str], message: str) -> None:
    limit = time.monotonic() + WAIT_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise UsageError(message) from None
            time.sleep(0.05)


def is_there(file: IO[str], path: Path) -> bool:
    """The file is still what its path names: who is done with a lock may remove it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def hold_as_worker(work: Path) -> None:
    """In a worker process: let later builds see that it works in the folder, until it ends."""
    key = os.fspath(work)
    if parent_process() is not None and key not in _held:
        _held[key] = file = open(work / _WORKERS, "w")  # noqa: SIM115 (held until the end)
        fcntl.flock(file, fcntl.LOCK_SH)
