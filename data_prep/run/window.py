"""Tasks on an executor, as many at a time as it has workers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

from data_prep.run import Function
from data_prep.run.stop import STOP


def run_window(
    executor: Executor,
    width: int,
    function: Function,
    waiting: list[tuple[Any, ...]],
    running: dict[Future[Any], tuple[Any, ...]],
) -> Iterator[Any]:
    """Yield results as they come; tasks are taken from the end of ``waiting``.

    ``running`` holds what is in hand, also when this raises, so that it can be done again. No
    further task is started once a stop is requested.
    """
    while running or (waiting and not STOP.requested):
        while waiting and len(running) < width and not STOP.requested:
            future = executor.submit(function, *waiting[-1])
            running[future] = waiting.pop()
        # woken now and then, so that a signal is seen
        done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            result = future.result()
            del running[future]
            yield result
