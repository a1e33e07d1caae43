"""Tasks in worker processes of this machine; a worker that is killed is replaced."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from data_prep.errors import DataPrepError
from data_prep.executors.base import Function
from data_prep.executors.stop import STOP
from data_prep.executors.window import PendingTasks, run_window
from gpst.jit.compiled import without_extensions

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
MAX_LOSSES = 3  # worker pools lost without a finished task in between


def _start_worker(parent: int) -> None:
    """In a worker: leave signals to the parent, and end when the parent ends (by SIGKILL too)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # the kernel kills the worker even when it is stopped
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl
        os._exit(1)
    without_extensions()
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """End with the parent on systems without prctl."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class ProcessesRunner:
    """See ``data_prep.executors.base.Runner``."""

    def __init__(self, workers: int):
        self.width = workers
        self._pool: ProcessPoolExecutor | None = None

    def _executor(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # spawn, not fork: fork would copy locks of threads (Arrow, Rust) in a locked state
            try:
                self._pool = ProcessPoolExecutor(
                    self.width, get_context("spawn"), _start_worker, (os.getpid(),)
                )
            except OSError as error:  # its locks are in shared memory, not on the output's disk
                raise DataPrepError(
                    f"worker processes cannot be started: {error.strerror or error} (their locks"
                    " are in /dev/shm); free some of it or make it writable, or: --workers 1"
                ) from None
        return self._pool

    def run(self, function: Function, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """See Runner.run."""
        pending = PendingTasks(tasks)
        losses = 0
        while not (pending.ended or STOP.requested):
            running: dict[Future[Any], tuple[Any, ...]] = {}
            try:
                for result in run_window(self._executor(), self.width, function, pending, running):
                    losses = 0
                    yield result
            except BrokenProcessPool:
                losses += 1
                self._kill_workers()
                self.close()
                if losses == MAX_LOSSES:
                    raise DataPrepError(
                        f"worker processes were killed {losses} times in a row (out of memory?);"
                        " run the same command with fewer --workers, it goes on from here"
                    ) from None
                pending.put_back(running.values())

    def _kill_workers(self) -> None:
        """Kill the remaining workers of a broken pool.

        The pool sends SIGTERM, which workers ignore: it would wait for an idle one forever.
        """
        processes = getattr(self._pool, "_processes", None) or {}
        for process in list(processes.values()):
            process.kill()

    def close(self) -> None:
        """See Runner.close."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
