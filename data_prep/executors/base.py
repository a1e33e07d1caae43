"""Backends that run tasks: in this process, in several processes, or over MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from data_prep.errors import UsageError

Function = Callable[..., Any]


class Runner(Protocol):
    """Runs a function on many tasks. Tasks and results must be picklable.

    width: how many it runs at a time. Tasks are taken one by one, when there is room for them.
    ``run`` yields results as they are finished, in any order; it raises what a task raised. Once
    ``stop.requested``, it starts no further task, finishes those in hand, and ends early.
    """

    width: int

    def run(self, function: Function, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Call ``function(*task)`` for each task."""
        ...

    def close(self) -> None:
        """Let the workers go."""
        ...


def local_runner(workers: int) -> Runner:
    """A runner on this machine; one worker runs in this process."""
    if workers < 1:
        raise UsageError(f"--workers {workers}: at least 1")
    if workers == 1:
        from data_prep.executors.serial import SerialRunner

        return SerialRunner()
    from data_prep.executors.processes import ProcessesRunner

    return ProcessesRunner(workers)
