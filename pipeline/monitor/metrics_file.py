"""metrics.jsonl: one JSON object a line, each with its step; every step at most once.

A number that is not finite is written as null, since JSON has no other word for it.
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

FILE_NAME = METRICS


class MetricsFile:
    """Appends lines to a run's metrics.jsonl, or to another file of lines with steps.

    Lines of steps after `start_step`, which a resumed run will take again, and torn lines are
    removed first; a run that starts at step 0 begins a new file and keeps one that is there under
    another name.
    """

    def __init__(self, run_dir: Path, start_step: int, name: str = FILE_NAME) -> None:
        self.path = run_dir / name
        if start_step == 0:
            _keep_earlier(self.path)
        kept = [line for line in read_metrics(self.path) if line["step"] <= start_step]
        self.last_line: dict[str, Any] | None = kept[-1] if kept else None
        """The last line that was kept, if any."""
        write_atomically(self.path, "".join(map(_to_line, kept)).encode())
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._waiting = b""

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends a line and hands it to the operating system.

        While that fails (a full disk) lines wait in memory, which is said once.
        """
        before, self._waiting = self._waiting, self._waiting + _to_line(values).encode()
        try:
            self._flush()
        except OSError as error:
            if not before:
                reason = error.strerror or error
                said = f"{self.path} cannot be written ({reason}): its lines wait in memory"
                print(said, file=sys.stderr, flush=True)

    def _flush(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def sync(self) -> None:
        """Makes all lines durable, also against a power cut."""
        with suppress(OSError):  # said by `write`
            self._flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()


def _keep_earlier(path: Path) -> None:
    """Renames what an earlier start wrote that came to no checkpoint."""
    if path.exists() and path.stat().st_size:
        kept = free_name(path.with_name(f"{path.stem}.earlier{path.suffix}"))
        os.rename(path, kept)
        said = f"{path} begins anew at step 0; what an earlier start wrote is kept in {kept.name}"
        print(said, file=sys.stderr, flush=True)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics.jsonl, in order; none when the file is missing.

    A line that a kill cut short is left out.
    """
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
    plain = {name: _finite(value) for name, value in values.items()}
    return json.dumps(plain, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
