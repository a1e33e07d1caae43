"""Finds what runs have written: results.json of evaluations, metrics.jsonl of training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.results import RESULTS
from pipeline.monitor.metrics_file import read_metrics
from pipeline.run_folder import ABANDONED, METRICS


@dataclass(frozen=True)
class Result:
    """One results.json."""

    folder: Path
    values: dict[str, Any]

    @property
    def task(self) -> str:
        """E.g. glue/cola, syntactic_generalization."""
        return str(self.values.get("task", ""))


@dataclass(frozen=True)
class Training:
    """One metrics.jsonl."""

    folder: Path
    metrics: list[dict[str, Any]]

    def values(self, metric: str) -> list[float]:
        """The values of a metric, in order."""
        return [line[metric] for line in self.metrics if line.get(metric) is not None]


@dataclass(frozen=True)
class Collected:
    """All results and training runs below some folders."""

    results: list[Result]
    trainings: list[Training]


def collect(folders: Sequence[str]) -> Collected:
    """Looks for results and metrics in the folders and below them.

    Raises:
        ConfigError: a folder is missing, or there is no result and no training run.
        DataError: a results.json is damaged.
    """
    results: dict[Path, Result] = {}
    trainings: dict[Path, Training] = {}
    for name in folders:
        folder = Path(name)
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; give folders of runs")
        for file in sorted(folder.rglob(RESULTS)):
            # The folder above has the means over the seeds of a fine-tuning.
            seed = file.parent.name.startswith("seed-")
            if not (seed and (file.parent.parent / RESULTS).is_file()):
                results[file.resolve()] = Result(file.parent, _read(file))
        for file in sorted(folder.rglob(METRICS)):
            if any(part.startswith(ABANDONED) for part in file.relative_to(folder).parts):
                continue  # a line that its run has left; its folder can be named itself
            metrics = read_metrics(file)
            if metrics:
                trainings[file.resolve()] = Training(file.parent, metrics)
    if not results and not trainings:
        raise ConfigError(f"no {RESULTS} and no {METRICS} in {', '.join(folders)}")
    return Collected(list(results.values()), list(trainings.values()))


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise DataError(f"{file}: is no JSON object; run the evaluation again")
    return values


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file up to a damaged one; none when it is missing."""
    if not file.is_file():
        return []
    values = []
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                values.append(json.loads(line))
            except ValueError:
                break
    return values


def label(path: str | Path) -> str:
    """A short name of a model or run: its path below `runs`, or its last part."""
    omitted = ("exported", "checkpoints", ".", "..", "/")
    parts = [p for p in Path(path).parts if p not in omitted and not p.startswith("step-")]
    if "runs" in parts:
        return "/".join(parts[len(parts) - parts[::-1].index("runs") :]) or "model"
    seeds = [part.startswith("seed-") for part in reversed(parts)]
    # A seed says little without what it is a seed of; so does a seed of a fine-tuning.
    number = 4 if seeds[0:3:2] == [True, True] else 2 if seeds[:1] == [True] else 1
    return "/".join(parts[-number:]) or "model"
