"""Tasks on an executor, as many at a time as it has workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

from data_prep.executors.base import Function
from data_prep.executors.stop import STOP


class Waiting:
    """Tasks that were not started yet; those of a lost worker come first."""

    def __init__(self, tasks: Iterable[tuple[Any, ...]]):
        self._tasks = iter(tasks)
        self._again: list[tuple[Any, ...]] = []
        self.ended = False

    def next(self) -> tuple[Any, ...] | None:
        """The next task, or None: there is none left."""
        if self._again:
            return self._again.pop()
        task = next(self._tasks, None)
        self.ended = task is None
        return task

    def put_back(self, tasks: Iterable[tuple[Any, ...]]) -> None:
        """These are to be done again."""
        self._again.extend(tasks)
        self.ended = False


def run_window(
    executor: Executor,
    width: int,
    function: Function,
    waiting: Waiting,
    running: dict[Future[Any], tuple[Any, ...]],
) -> Iterator[Any]:
    """Yield results as they come.

    ``running`` holds what is in hand, also when this raises, so that it can be done again. No
    further task is started once a stop is requested.
    """
    while running or not (waiting.ended or STOP.requested):
        while len(running) < width and not STOP.requested:
            task = waiting.next()
            if task is None:
                break
            try:
                running[executor.submit(function, *task)] = task
            except BaseException:
                waiting.put_back([task])  # the workers are lost; it was not started
                raise
        # woken now and then, so that a signal is seen
        done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            result = future.result()
            del running[future]
            yield result
