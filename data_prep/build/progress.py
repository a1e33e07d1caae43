"""The progress of long work, on standard error: a bar, or without a terminal a line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

LINE_EVERY_S = 60.0


class Progress:
    """Bytes done and time left, of a build also documents; nothing at all when it is not shown.

    total_bytes: the weight of all the work. name: of the command.
    """

    def __init__(self, total_bytes: int, show: bool, name: str = "build"):
        self._bar: Any = None
        self._documents = self._dropped = self._bytes = 0
        self._total, self._show, self._name = total_bytes, show, name
        self._started = self._last_line = time.monotonic()
        if show and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=total_bytes, unit="B", unit_scale=True, desc=name, mininterval=0.5
            )

    def update(self, num_bytes: int, counters: Mapping[str, int]) -> None:
        """A unit is done."""
        self._documents += counters.get("documents", 0)
        self._dropped += sum(n for name, n in counters.items() if name.startswith("dropped/"))
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = f"{self._documents / seconds:.0f}/s"
        if self._bar is not None:
            self._bar.set_postfix(documents=self._documents, rate=rate, dropped=self._dropped)
        self.advance(
            num_bytes, f" | {self._documents:,} documents, {rate} | {self._dropped:,} dropped"
        )

    def advance(self, num_bytes: int, details: str = "") -> None:
        """So many more bytes are done; `details` are for the line."""
        self._bytes += num_bytes
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(num_bytes)
        elif self._show and now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            self._print_line(details, now - self._started)

    def _print_line(self, details: str, seconds: float) -> None:
        left = seconds * (self._total / max(self._bytes, 1) - 1)
        minutes, rest = divmod(round(max(left, 0.0)), 60)
        print(
            f"{self._name} {self._bytes / max(self._total, 1):.0%}{details}"
            f" | left {minutes // 60}:{minutes % 60:02}:{rest:02}",
            file=sys.stderr,
            flush=True,
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
