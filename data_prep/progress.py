"""The progress bar of a build, on standard error."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any


class Progress:
    """Bytes of input done, documents, tokens; nothing at all when it is not shown.

    total_bytes: the weight of all units.
    """

    def __init__(self, total_bytes: int, show: bool):
        self._bar: Any = None
        self._documents = self._dropped = 0
        if show:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total_bytes, unit="B", unit_scale=True, desc="build", mininterval=0.5
            )

    def update(self, num_bytes: int, counters: Mapping[str, int]) -> None:
        """A unit is done."""
        self._documents += counters.get("documents", 0)
        self._dropped += sum(n for name, n in counters.items() if name.startswith("dropped/"))
        if self._bar is not None:
            elapsed = max(self._bar.format_dict["elapsed"], 1e-9)
            rate = f"{self._documents / elapsed:.0f}/s"
            self._bar.set_postfix(documents=self._documents, rate=rate, dropped=self._dropped)
            self._bar.update(num_bytes)

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
