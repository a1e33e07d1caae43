"""Learning curves and trees of runs, as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpst.api import ParsedSentence
from gpst.render import as_svg
from gpst.tree import Tree
from pipeline.evaluate.results import PREDICTIONS
from pipeline.monitor.metrics import shown_in
from pipeline.monitor.metrics_file import read_metrics
from pipeline.report.charts import chart
from pipeline.report.collect import Result, Training, label, read_lines
from pipeline.run_folder import SAMPLES

_NUM_TREES = 4
_MOST_WORDS = 25


def curves(trainings: Sequence[Training]) -> dict[str, str]:
    """File name -> SVG: a chart for each metric, with a curve for each run."""
    charts = {}
    for metric in shown_in("chart"):
        name, log = metric.name, metric.log_scale
        lines = {}
        for training in trainings:
            points = [
                (float(line["step"]), float(line[name]))
                for line in training.metrics
                if line.get(name) is not None
                and math.isfinite(line[name])
                and (line[name] > 0 or not log)
            ]
            if len(points) > 1:
                lines[training.name] = points
        if lines:
            charts[f"curve-{name.replace('/', '-')}.svg"] = chart(metric.title, lines, log)
    return charts


def trees(results: Sequence[Result], trainings: Sequence[Training]) -> dict[str, str]:
    """File name -> SVG: the last trees of a run's fixed sentences, the first of an evaluation."""
    pictures = {}
    for training in trainings:
        samples = read_metrics(training.folder / SAMPLES)
        parsed = [parse_brackets(text) for text in samples[-1].get("trees", [])] if samples else []
        _add(pictures, training.name, parsed)
    for result in results:
        if result.task == "grammar_induction":
            lines = read_lines(result.folder / PREDICTIONS) or read_lines(
                result.folder / "seed-0" / PREDICTIONS
            )
            for parser in ("inside", "left-to-right"):
                short = [x for x in lines if 3 < len(x["words"]) <= _MOST_WORDS]
                parsed = [
                    ParsedSentence(x["words"], tree_of_spans(len(x["words"]), x["spans"][parser]))
                    for x in short[:_NUM_TREES]
                    if parser in x.get("spans", {})
                ]
                _add(pictures, f"{label(result.folder)}-{parser}", parsed)
    return pictures


def _add(pictures: dict[str, str], name: str, parsed: Sequence[ParsedSentence]) -> None:
    if parsed:
        plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
        pictures[f"trees-{plain}.svg"] = as_svg(parsed[:_NUM_TREES])


def parse_brackets(text: str) -> ParsedSentence:
    """The binary tree that "(a (b c))" describes."""
    words: list[str] = []
    actions: list[int] = []
    for part in text.replace("(", " ").replace(")", " ) ").split():
        if part != ")":
            words.append(part)
        actions.append(int(part == ")"))
    return ParsedSentence(words, Tree.from_actions(actions))


def tree_of_spans(num_words: int, spans: Sequence[Sequence[int]]) -> Tree:
    """The binary tree with these spans of two words and more."""
    known = {(i, j) for i, j in spans} | {(k, k) for k in range(num_words)}
    splits = {}
    for i, j in known:
        for k in range(i, j):
            if (i, k) in known and (k + 1, j) in known:
                splits[i, j] = k
    return Tree.from_splits(num_words, splits)
