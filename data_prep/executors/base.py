"""The interface of what runs tasks: in this process, in several processes, or over MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

Function = Callable[..., Any]


class Runner(Protocol):
    """Runs a function on many tasks. Tasks and results must be picklable.

    width: the number of tasks that run at a time. ``run`` takes tasks one by one, when a worker is
    free, and yields results as they finish, in any order. An exception of a task is raised. After
    ``STOP.requested`` no further task starts; the running ones finish.
    """

    width: int

    def run(self, function: Function, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Call ``function(*task)`` for each task."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...
