"""SIGTERM and Ctrl-C: finish the running tasks, then stop; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether the run was asked to stop."""

    requested = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


STOP = Stop()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Handle SIGTERM and SIGINT in the block; restores the former handlers."""
    STOP.requested = False
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, STOP.request) for number in numbers]
    try:
        yield STOP
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
