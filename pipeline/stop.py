"""A wish to end the run at the next step: signals, and the death of the launcher."""

import os
import signal
import time
from types import FrameType

from pipeline.errors import EXIT_INTERRUPTED

ONE_DELIVERY_S = 1.0
"""Launchers pass a signal on to ranks that got it themselves: both are one wish."""


class StopRequest:
    """Remembers that the run should save and end; a second signal ends the process at once.

    SIGTERM and SIGUSR1 (Slurm's warning) ask for an end with exit code 0, Ctrl-C with 130.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.exit_code = 0
        self._since = 0.0
        self._previous: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def request(self, reason: str, exit_code: int = 0) -> None:
        """Asks for the end; the first reason stays."""
        if self.reason is None:
            self.reason, self.exit_code, self._since = reason, exit_code, time.monotonic()

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.requested and time.monotonic() - self._since > ONE_DELIVERY_S:
            os.write(2, b"second signal: stopped at once, without saving\n")
            os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else 128 + number)
        name = signal.Signals(number).name
        self.request(name, EXIT_INTERRUPTED if number == signal.SIGINT else 0)
