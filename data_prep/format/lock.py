"""Locks on the work folder: one build at a time, and none beside the workers of a killed one.

The kernel releases a lock when its process ends, however it ends.
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

# how long to wait for processes of a build that was just killed
WAIT_S = 10.0
_BUILD, _WORKERS = "lock", "workers"
_worker_locks: dict[str, IO[str]] = {}  # of this process, by work folder


@contextmanager
def build_lock(work: Path, output: str) -> Iterator[None]:
    """Lock the work folder for one build; waits WAIT_S for a killed build to end.

    Raises UsageError when another build, or a worker of an earlier one, still holds a lock.
    """
    if lock := _worker_locks.pop(os.fspath(work), None):
        lock.close()  # of this very process
    with open(work / _BUILD, "w") as file, open(work / _WORKERS, "w") as workers:
        _lock(file, f"output {output}: another build is writing to it")
        _lock(workers, f"output {output}: workers of an earlier build are still going; end them")
        fcntl.flock(workers, fcntl.LOCK_UN)  # this build's workers take it from now on
        if not is_same_file(file, work / _BUILD):
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


def is_same_file(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at its path: a finished build removes its lock."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def lock_as_worker(work: Path) -> None:
    """In a worker process: show later builds, until it ends, that it uses the folder."""
    key = os.fspath(work)
    if parent_process() is not None and key not in _worker_locks:
        _worker_locks[key] = file = open(work / _WORKERS, "w")  # noqa: SIM115 (held until the end)
        fcntl.flock(file, fcntl.LOCK_SH)
