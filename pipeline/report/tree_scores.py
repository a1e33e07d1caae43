"""F1 of trees, the seeds of a model together: by length of sentence, and recall by label."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev
from typing import Any

from pipeline.evaluate.results import RESULTS
from pipeline.report.collect import Result
from pipeline.report.names import Names
from pipeline.report.tables import Cell, Table

_PARSERS = {"inside": "inside", "left-to-right": "left to right"}
Value = tuple[str, str, float]
"""Row, column, number."""


def mean_cells(table: Table, values: Sequence[Value]) -> Table:
    """Puts the mean and deviation of all numbers of a cell into the table."""
    numbers: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, column, number in values:
        numbers[row, column].append(number)
    for (row, column), of_cell in numbers.items():
        table.put(row, column, Cell(fmean(of_cell), pstdev(of_cell), len(of_cell)))
    return table


def tree_scores(
    results: Sequence[Result], names: Names
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(model or trivial tree, parser or "", score), once for every seed of a model."""
    baselines: dict[str, Any] = {}
    for result in results:
        if result.task == "grammar_induction":
            of_seeds = [
                result.folder / f"seed-{seed}" / RESULTS for seed in result.values.get("seeds", [])
            ]
            fine_tunings = [json.loads(file.read_bytes()) for file in of_seeds if file.is_file()]
            for values in [result.values, *fine_tunings]:
                yield from _of_models(values, names)
                baselines = baselines or values.get("baselines", {})
            if "predictions" in result.values.get("scores", {}):  # trees of a file, of no model
                yield names.of(result), "", result.values["scores"]["predictions"]
    for name, score in baselines.items():  # they are no model's, and have no seeds
        yield name, "", score


def _of_models(values: dict[str, Any], names: Names) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of a seed of a fine-tuning, or of an evaluation."""
    for parser, score in values.get("details", {}).items():
        yield names(values["model"]["path"], seed=False), _PARSERS[parser], score
    for run in values.get("runs", []) if "seeds" not in values else []:
        of_parser = next(iter(run["model"].values()))
        for parser, score in run["scores"].items():
            yield names(of_parser["path"], seed=False), _PARSERS[parser], score


def tree_details(results: Sequence[Result], names: Names) -> Table:
    """Empty where no trees were scored."""
    table = Table(
        "tree_details",
        "Grammar induction by length and label",
        [],
        "F1 of sentences of at most so many words; then the share of the gold constituents of a "
        "label that the trees have.",
    )
    values: list[Value] = []
    for name, parser, score in tree_scores(results, names):
        row = ", ".join(filter(None, (name, parser)))
        for longest, f1 in score.get("f1_by_length", {}).items():
            values.append((row, f"up to {longest} words", f1))
        for of_label, recall in score.get("recall_by_label", {}).items():
            values.append((row, of_label, recall))
    return mean_cells(table, [value for value in values if value[2] is not None])
