"""A row for each model, its seeds together: its perplexity, its trees and its speed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from pipeline.evaluate.results import RESULTS
from pipeline.monitor.metrics import METRICS
from pipeline.report.collect import Result, Training
from pipeline.report.names import Names, without_seed
from pipeline.report.tables import Cell, Table

_SPEED = METRICS["tokens_per_second"]
_PERPLEXITY, _GIVEN_TREES = "perplexity", "given its trees"
_PARSERS = {"inside": "inside", "left-to-right": "left to right"}
_Value = tuple[str, str, float]
"""Row, column, number."""


def overview(results: Sequence[Result], trainings: Sequence[Training]) -> Table:
    """Empty unless some model has more than its training."""
    table = Table(
        "overview",
        "Overview",
        [],
        "Mean ± deviation over seeds. Perplexity per token on held-out text: GPST's with its trees "
        "marginalised over a beam, which compares with GPT-2's, and given its own trees. F1: "
        "unlabelled, of sentences and of the corpus. SyntaxGym: mean of the circuits.",
    )
    by_task = {
        "perplexity": _perplexities,
        "grammar_induction": _induction,
        "syntactic_generalization": _suites,
    }
    values = [
        value
        for result in results
        if result.task in by_task
        for value in by_task[result.task](result.values, result.folder)
    ]
    values += _baselines(results)
    known = {row for row, _, _ in values}
    if known:
        values += [value for value in _speeds(trainings) if value[0] in known]
    gathered: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, column, number in values:
        gathered[row, column].append(number)
    name = Names(results, trainings)
    baselines = {row for row, _, _ in _baselines(results)}
    for (row, column), numbers in gathered.items():
        named = row if row in baselines else name(row)
        table.put(named, column, Cell(fmean(numbers), pstdev(numbers), len(numbers)))
    return table


def _perplexities(values: dict[str, Any], _: Path) -> Iterator[_Value]:
    for run in values["runs"]:
        for name, number in run["token_perplexity"].items():
            yield (
                without_seed(run["path"]),
                _GIVEN_TREES if "given" in name else _PERPLEXITY,
                number,
            )
    for run in values["gpt2_runs"]:
        yield without_seed(run["path"]), _PERPLEXITY, run["token_perplexity"]


def _induction(values: dict[str, Any], folder: Path) -> Iterator[_Value]:
    """Of a fine-tuning, whose seeds have the details, or of an evaluation."""
    of_seeds = [folder / f"seed-{seed}" / RESULTS for seed in values.get("seeds", [])]
    fine_tunings = [json.loads(file.read_bytes()) for file in of_seeds if file.is_file()]
    for fine_tuning in fine_tunings:
        for parser, score in fine_tuning["details"].items():
            yield from _trees(without_seed(fine_tuning["model"]["path"]), parser, score)
    for run in [] if "seeds" in values else values.get("runs", []):
        of_parser = next(iter(run["model"].values()))
        for parser, score in run["scores"].items():
            yield from _trees(without_seed(of_parser["path"]), parser, score)


def _baselines(results: Sequence[Result]) -> list[_Value]:
    """Of the first evaluation of trees: they are no model's, and have no seeds."""
    for result in results:
        files = sorted(result.folder.glob(f"seed-*/{RESULTS}"))
        for values in [result.values, *(json.loads(file.read_bytes()) for file in files)]:
            if scores := values.get("baselines"):
                return [v for name in scores for v in _trees(name, "inside", scores[name])]
    return []


def _trees(row: str, parser: str, score: dict[str, Any]) -> Iterator[_Value]:
    name = _PARSERS[parser]
    yield row, f"F1 {name}", score["sentence_f1"]
    yield row, f"corpus F1 {name}", score["corpus_f1"]


def _suites(values: dict[str, Any], _: Path) -> Iterator[_Value]:
    for run in values["runs"]:
        if run["score"] is not None:
            yield without_seed(run["model"]["path"]), "SyntaxGym", run["score"]


def _speeds(trainings: Sequence[Training]) -> Iterator[_Value]:
    for training in trainings:
        if rates := sorted(filter(None, training.values(_SPEED.name))):
            yield without_seed(training.folder), _SPEED.unit, rates[len(rates) // 2]
