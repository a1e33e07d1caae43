"""F1 of trees, the seeds of a model together: by length of sentence, and recall by label."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from pipeline.evaluate.results import RESULTS
from pipeline.report.collect import Result
from pipeline.report.names import Names
from pipeline.report.tables import Cell, Table

_PARSERS = {"inside": "inside", "left-to-right": "left to right"}


class Value(NamedTuple):
    """A number of one model."""

    row: str
    column: str
    number: float
    path: str
    """The model's: its seed."""


def mean_cells(table: Table, values: Sequence[Value]) -> Table:
    """Puts the mean and deviation over the models of a cell into the table.

    Of a model that was measured twice in the same way the last number is taken.
    """
    numbers: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for value in values:
        numbers[value.row, value.column][value.path] = value.number
    for (row, column), by_model in numbers.items():
        of_cell = list(by_model.values())
        table.put(row, column, Cell(fmean(of_cell), pstdev(of_cell), len(of_cell)))
    return table


def tree_scores(
    results: Sequence[Result], names: Names
) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """(model or trivial tree, parser or "", score, path of the model), for every seed of a model.

    Trivial trees have a row for each setting.
    """
    baselines: dict[str, dict[str, Any]] = {}
    for result in results:
        if result.task == "grammar_induction":
            setting = names.setting(result)
            of_seeds = [
                result.folder / f"seed-{seed}" / RESULTS for seed in result.values.get("seeds", [])
            ]
            fine_tunings = [json.loads(file.read_bytes()) for file in of_seeds if file.is_file()]
            for values in [result.values, *fine_tunings]:
                for path, parser, score in _of_models(values):
                    yield names(path, seed=False) + setting, parser, score, path
                for name, score in values.get("baselines", {}).items():
                    baselines.setdefault(name + setting, score)
            if "predictions" in result.values.get("scores", {}):  # trees of a file, of no model
                name = names.of(result)
                yield name, "", result.values["scores"]["predictions"], name
    for name, score in baselines.items():  # they are no model's, and have no seeds
        yield name, "", score, name


def _of_models(values: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(path of the model, parser, score) of a seed of a fine-tuning, or of an evaluation."""
    for parser, score in values.get("details", {}).items():
        yield values["model"]["path"], _PARSERS[parser], score
    for run in values.get("runs", []) if "seeds" not in values else []:
        of_parser = next(iter(run["model"].values()))
        for parser, score in run["scores"].items():
            yield of_parser["path"], _PARSERS[parser], score


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
    for name, parser, score, path in tree_scores(results, names):
        row = ", ".join(filter(None, (name, parser)))
        for longest, f1 in score.get("f1_by_length", {}).items():
            values.append(Value(row, f"up to {longest} words", f1, path))
        for of_label, recall in score.get("recall_by_label", {}).items():
            values.append(Value(row, of_label, recall, path))
    return mean_cells(table, [value for value in values if value.number is not None])
