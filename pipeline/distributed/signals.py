"""What the run is asked to do at its next step: by signals, or by the death of the launcher.

train/trainer.py answers: it saves and ends.
"""

import os
import signal
import time
from contextlib import suppress
from types import FrameType

from pipeline.errors import EXIT_INTERRUPTED, EarlyStop

ONE_DELIVERY_S = 1.0
"""Launchers pass a signal on to ranks that got it themselves: both are one wish."""


class StopRequest:
    """Remembers that the run should save and end; a second signal ends the process at once.

    SIGTERM and SIGUSR1 (Slurm's warning) ask for an end with exit code 0, Ctrl-C with 130. A
    terminal that closes (SIGHUP) asks for a checkpoint alone: the run outlives it, also where its
    launcher does not. What ignores SIGHUP (nohup) goes on ignoring it.

    Args:
        early: there is nothing to save yet: a signal raises EarlyStop or KeyboardInterrupt, until
            `wait_for_the_step`. A terminal that closes then ends the process.
    """

    def __init__(self, early: bool = False) -> None:
        self.exit_code = 0
        self._early: int | None = None
        self._raises = early
        self._reason: str | None = None
        self._orphaned = self._hung_up = self._wants_save = False
        self._since = 0.0
        self._previous: dict[int, object] = {}

    @property
    def reason(self) -> str | None:
        """Why the run should end; None: it should not."""
        if self._reason is None and self._orphaned and not self._hung_up:
            return "the end of the deepspeed command"
        return self._reason

    @property
    def requested(self) -> bool:
        """Whether the run should end."""
        return self.reason is not None

    def request(self, reason: str, exit_code: int = 0) -> None:
        """Asks for the end; the first reason stays."""
        if self._reason is None:
            self._reason, self.exit_code, self._since = reason, exit_code, time.monotonic()

    def launcher_is_gone(self) -> None:
        """Asks for the end, unless the terminal has closed, which ends a launcher too."""
        self._orphaned = True

    def takes_save(self) -> bool:
        """Whether a checkpoint is wanted since the last call."""
        if not self._wants_save:
            return False
        self._wants_save = False  # a signal from here on is met by the checkpoint to come
        return True

    def raise_early(self) -> None:
        """Raises for a signal that came early: what the handler raised may have been swallowed."""
        if self._raises and self._early is not None:
            raise KeyboardInterrupt if self._early == signal.SIGINT else EarlyStop(self._early)

    def wait_for_the_step(self) -> None:
        """From here on signals are answered at the end of a step."""
        self.raise_early()
        self._raises = False
        self._catch_hangups()

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._on_signal)
        if not self._raises:
            self._catch_hangups()
        return self

    def _catch_hangups(self) -> None:
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            self._previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._hung_up = self._wants_save = True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._raises and self._early is None:
            self._early, self._since = number, time.monotonic()
            self._reason = signal.Signals(number).name
            self.raise_early()
        if self._reason is not None and time.monotonic() - self._since > ONE_DELIVERY_S:
            with suppress(OSError):  # nobody may listen any more
                os.write(2, b"second signal: stopped at once, without saving\n")
            os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else 128 + number)
        name = signal.Signals(number).name
        self.request(name, EXIT_INTERRUPTED if number == signal.SIGINT else 0)
