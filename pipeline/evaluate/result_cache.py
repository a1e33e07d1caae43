"""Results of an interrupted evaluation, so that the next one continues from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.errors import DataError

CACHE_FILE = "kept.jsonl"
"""In the folder of an evaluation's results."""


class ResultCache:
    """Results of single items, written to a file one by one.

    Args:
        file: lines of {"key", "item", "value"}; a line that a kill cut short is removed.
        key: what the values depend on besides the item; lines with other keys are ignored.
    Raises:
        DataError: the file cannot be read or written.
    """

    def __init__(self, file: Path, key: str):
        self._file, self._key = file, key
        try:
            self.entries: dict[str, Any] = self._read()
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from None

    def __contains__(self, item: str) -> bool:
        return item in self.entries

    def __getitem__(self, item: str) -> Any:
        return self.entries[item]

    def add(self, values: dict[str, Any]) -> None:
        """Stores the values of some items. Raises DataError when they cannot be written."""
        lines = [
            json.dumps({"key": self._key, "item": item, "value": value}) + "\n"
            for item, value in values.items()
        ]
        try:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write("".join(lines))
        except OSError as error:
            raise DataError(f"{self._file}: cannot be written ({error.strerror})") from None
        # As they would be read again: tuples are lists, whole numbers as names are texts.
        self.entries |= {item: json.loads(json.dumps(value)) for item, value in values.items()}

    def _read(self) -> dict[str, Any]:
        if not self._file.is_file():
            return {}
        whole, entries = [], {}
        content = self._file.read_text(encoding="utf-8", errors="replace")
        for line in content.splitlines(keepends=True):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if line.endswith("\n") and isinstance(entry, dict) and "item" in entry:
                whole.append(line)
                if entry.get("key") == self._key:
                    entries[entry["item"]] = entry["value"]
        if "".join(whole) != content:
            self._file.write_text("".join(whole), encoding="utf-8")
        return entries
