"""A row for each model, its seeds together: its perplexity, its trees and its speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.monitor.metrics import METRICS
from pipeline.report.collect import Result, Training
from pipeline.report.names import Names
from pipeline.report.tables import Table
from pipeline.report.tree_scores import Value, mean_cells, tree_scores

_SPEED = METRICS["tokens_per_second"]
_PERPLEXITY, _GIVEN_TREES = "perplexity", "given its trees"


def overview(results: Sequence[Result], trainings: Sequence[Training]) -> Table:
    """Empty unless some model has more than its training."""
    table = Table(
        "overview",
        "Overview",
        [],
        "Mean ± deviation over seeds. Perplexity per token on held-out text: GPST's with its trees "
        "marginalised over a beam, which compares with GPT-2's, and given its own trees. F1: "
        "unlabelled, of sentences and of the corpus. SyntaxGym: mean of the circuits. Results of "
        "other data or options have rows of their own, which say what differs.",
    )
    names = Names(results, trainings)
    by_task = {"perplexity": _perplexities, "syntactic_generalization": _suites}
    values = [
        value
        for result in results
        if result.task in by_task
        for value in by_task[result.task](result, names)
    ]
    values += _trees(results, names)
    known = {value.row for value in values}
    if known:
        values += [value for value in _speeds(trainings, names) if value.row in known]
    return mean_cells(table, values)


def _perplexities(result: Result, names: Names) -> Iterator[Value]:
    setting, of_any = names.setting(result), names.setting(result, without=("beam",))
    for run in result.values["runs"]:
        for name, number in run["token_perplexity"].items():
            column = _GIVEN_TREES if "given" in name else _PERPLEXITY
            yield Value(names(run["path"], seed=False) + setting, column, number, run["path"])
    for run in result.values["gpt2_runs"]:
        row = names(run["path"], seed=False) + of_any
        yield Value(row, _PERPLEXITY, run["token_perplexity"], run["path"])


def _trees(results: Sequence[Result], names: Names) -> Iterator[Value]:
    for row, parser, score, path in tree_scores(results, names):
        of_parser = f" {parser}" if parser else ""
        yield Value(row, f"F1{of_parser}", score["sentence_f1"], path)
        yield Value(row, f"corpus F1{of_parser}", score["corpus_f1"], path)


def _suites(result: Result, names: Names) -> Iterator[Value]:
    for run in result.values["runs"]:
        if run["score"] is not None:
            path = run["model"]["path"]
            row = names(path, seed=False) + names.setting(result)
            yield Value(row, "SyntaxGym", run["score"], path)


def _speeds(trainings: Sequence[Training], names: Names) -> Iterator[Value]:
    for training in trainings:
        if rates := sorted(filter(None, training.values(_SPEED.name))):
            row, rate = names(training.folder, seed=False), rates[len(rates) // 2]
            yield Value(row, _SPEED.unit, rate, str(training.folder))
