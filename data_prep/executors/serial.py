"""Tasks one after another in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from data_prep.executors.base import Function
from data_prep.executors.stop import STOP


class SerialRunner:
    """See ``data_prep.executors.base.Runner``."""

    width = 1

    def run(self, function: Function, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """See Runner.run."""
        for task in tasks:
            if STOP.requested:
                return
            yield function(*task)

    def close(self) -> None:
        """Nothing to do."""
