"""metrics.jsonl: one JSON object a line, each with its step; every step at most once.

A number that is not finite is written as null: JSON has no other notation for it.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_prep.files import write_atomically
from pipeline.run_folder import METRICS, free_name


class MetricsFile:
    """Appends lines to a run's metrics.jsonl, or to another file of lines with steps.

    Lines of steps after `start_step`, which a resumed run repeats, and torn lines are removed
    first. A run that starts at step 0 begins a new file and renames an earlier one.
    """

    def __init__(self, run_dir: Path, start_step: int, name: str = METRICS) -> None:
        self.path = run_dir / name
        if start_step == 0:
            _rename_earlier(self.path)
        lines = [line for line in read_metrics(self.path) if line["step"] <= start_step]
        self.last_line: dict[str, Any] | None = lines[-1] if lines else None
        """The last line of an earlier process, if any."""
        write_atomically(self.path, "".join(map(_to_line, lines)).encode())
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._pending = b""

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends a line and hands it to the operating system.

        While that fails (a full disk) lines stay in memory; one message says so.
        """
        failed_before = bool(self._pending)
        self._pending += _to_line(values).encode()
        try:
            self._flush()
        except OSError as error:
            if not failed_before:
                reason = error.strerror or error
                message = f"{self.path} cannot be written ({reason}): its lines wait in memory"
                print(message, file=sys.stderr, flush=True)

    def _flush(self) -> None:
        while self._pending:
            self._pending = self._pending[self._file.write(self._pending) :]

    def sync(self) -> None:
        """Makes all lines durable, also against a power cut."""
        with suppress(OSError):  # `write` has reported it
            self._flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()


def _rename_earlier(path: Path) -> None:
    """Renames the file of an earlier start that reached no checkpoint."""
    if path.exists() and path.stat().st_size:
        earlier = free_name(path.with_name(f"{path.stem}.earlier{path.suffix}"))
        os.rename(path, earlier)
        message = f"{path} begins anew at step 0; an earlier start's lines are in {earlier.name}"
        print(message, file=sys.stderr, flush=True)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, in order, without torn ones; none when the file is missing."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = json.loads(text)
        except ValueError:
            continue
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            lines.append(values)
    return lines


def _to_line(values: Mapping[str, Any]) -> str:
    finite = {name: _finite(value) for name, value in values.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
