"""A row for each model, its seeds together: its perplexity, its trees and its speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
        "unlabelled, of sentences and of the corpus. SyntaxGym: mean of the circuits.",
    )
    names = Names(results, trainings)
    by_task = {"perplexity": _perplexities, "syntactic_generalization": _suites}
    values = [
        value
        for result in results
        if result.task in by_task
        for value in by_task[result.task](result.values, names)
    ]
    values += _trees(results, names)
    known = {row for row, _, _ in values}
    if known:
        values += [value for value in _speeds(trainings, names) if value[0] in known]
    return mean_cells(table, values)


def _perplexities(values: dict[str, Any], names: Names) -> Iterator[Value]:
    for run in values["runs"]:
        for name, number in run["token_perplexity"].items():
            yield (
                names(run["path"], seed=False),
                _GIVEN_TREES if "given" in name else _PERPLEXITY,
                number,
            )
    for run in values["gpt2_runs"]:
        yield names(run["path"], seed=False), _PERPLEXITY, run["token_perplexity"]


def _trees(results: Sequence[Result], names: Names) -> Iterator[Value]:
    for row, parser, score in tree_scores(results, names):
        yield row, f"F1 {parser or 'inside'}", score["sentence_f1"]
        yield row, f"corpus F1 {parser or 'inside'}", score["corpus_f1"]


def _suites(values: dict[str, Any], names: Names) -> Iterator[Value]:
    for run in values["runs"]:
        if run["score"] is not None:
            yield names(run["model"]["path"], seed=False), "SyntaxGym", run["score"]


def _speeds(trainings: Sequence[Training], names: Names) -> Iterator[Value]:
    for training in trainings:
        if rates := sorted(filter(None, training.values(_SPEED.name))):
            yield names(training.folder, seed=False), _SPEED.unit, rates[len(rates) // 2]
