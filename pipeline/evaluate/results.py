"""The results of an evaluation: results.json, predictions.jsonl, and a table for the terminal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from data_prep.files import write_atomically
from pipeline.checkpoint.trainer_state import git_revision
from pipeline.config.run import REPOSITORY
from pipeline.errors import DataError

RESULTS, PREDICTIONS = "results.json", "predictions.jsonl"


@dataclass(frozen=True)
class ResultsFolder:
    """The files of one evaluation."""

    path: Path

    @classmethod
    def at(cls, folder: str | Path) -> ResultsFolder:
        """Makes the folder that --output names, before the work starts.

        Raises:
            DataError: it cannot be made.
        """
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"--output {path}: cannot be made ({error.strerror}); give another folder"
            ) from None
        return cls(path)

    def write(self, results: dict[str, Any], predictions: Iterable[dict[str, Any]]) -> None:
        """Writes predictions.jsonl (a line an item), then results.json with the versions.

        Raises:
            DataError: they cannot be written.
        """
        self.write_predictions(predictions)
        self.write_results(results)

    def write_predictions(self, predictions: Iterable[dict[str, Any]]) -> None:
        """Writes predictions.jsonl; raises DataError."""
        lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in predictions]
        self._write(PREDICTIONS, "".join(lines))

    def write_results(self, results: dict[str, Any]) -> None:
        """Writes results.json; raises DataError."""
        whole = {**results, "git_revision": git_revision(REPOSITORY), "versions": _versions()}
        self._write(RESULTS, json.dumps(whole, indent=2, ensure_ascii=False) + "\n")

    def _write(self, name: str, text: str) -> None:
        try:
            write_atomically(self.path / name, text.encode())
        except OSError as error:
            raise DataError(f"{self.path}: {name} cannot be written ({error.strerror})") from None


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "rouge-score")
    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):  # the last two are needed by some tasks only
            versions[name] = version(name)
    return versions


def fingerprint(paths: Iterable[Path]) -> str:
    """SHA-256 over the contents of files, in this order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def mean_std(values: Sequence[float]) -> dict[str, Any]:
    """Mean and (population) standard deviation over models or seeds, with the values."""
    return {"mean": fmean(values), "deviation": pstdev(values), "values": list(values)}


def table(header: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> str:
    """Rows under a header; numbers with one digit on the right, None as "-", words on the left."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    columns = []
    for column in zip(*cells, strict=True):
        width = max(map(len, column))
        wordy = any(cell.strip("-.0123456789") for cell in column[1:])
        lines = [cell.ljust(width) if wordy else cell.rjust(width) for cell in column]
        columns.append([lines[0], "-" * width, *lines[1:]])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _cell(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value)
