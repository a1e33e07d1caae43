"""Tasks on an executor, as many at a time as it has workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

from data_prep.executors.base import Function
from data_prep.executors.stop import STOP


class PendingTasks:
    """Tasks that have not started; those of a lost worker come first."""

    def __init__(self, tasks: Iterable[tuple[Any, ...]]):
        self._tasks = iter(tasks)
        self._put_back: list[tuple[Any, ...]] = []
        self.ended = False

    def next(self) -> tuple[Any, ...] | None:
        """The next task, or None at the end."""
        if self._put_back:
            return self._put_back.pop()
        task = next(self._tasks, None)
        self.ended = task is None
        return task

    def put_back(self, tasks: Iterable[tuple[Any, ...]]) -> None:
        """Add tasks that must run again."""
        self._put_back.extend(tasks)
        self.ended = False


def run_window(
    executor: Executor,
    width: int,
    function: Function,
    pending: PendingTasks,
    running: dict[Future[Any], tuple[Any, ...]],
) -> Iterator[Any]:
    """Yield results as they come.

    ``running`` holds the running tasks, also after an exception, so that they can run again. No
    task starts after a stop is requested.
    """
    while running or not (pending.ended or STOP.requested):
        while len(running) < width and not STOP.requested:
            task = pending.next()
            if task is None:
                break
            try:
                running[executor.submit(function, *task)] = task
            except BaseException:
                pending.put_back([task])  # the workers are lost, the task did not start
                raise
        # the timeout lets Python handle signals
        done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            result = future.result()
            del running[future]
            yield result
