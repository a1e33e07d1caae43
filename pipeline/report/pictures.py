"""Learning curves and trees of runs, as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpst.api import ParsedSentence
from gpst.render import as_svg
from gpst.tree import Tree
from pipeline.evaluate.results import PREDICTIONS
from pipeline.monitor.metrics import shown_in
from pipeline.monitor.metrics_file import read_metrics
from pipeline.report.charts import chart
from pipeline.report.collect import Result, Training, label, read_lines
from pipeline.report.names import Names
from pipeline.run_folder import SAMPLES

_NUM_TREES = 4
_MOST_WORDS = 25


@dataclass(frozen=True)
class Picture:
    """A picture of the report."""

    file: str
    heading: str
    """Of the section that it is in."""
    caption: str
    svg: str


def curves(trainings: Sequence[Training], names: Names) -> list[Picture]:
    """A chart for each metric, with a curve for each run."""
    pictures = []
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
                lines[names(training.folder)] = points
        if lines:
            title = f"{metric.title}, {metric.unit}" if metric.unit else metric.title
            file = f"curve-{name.replace('/', '-')}.svg"
            pictures.append(Picture(file, "Learning curves", title, chart(title, lines, log)))
    return pictures


def trees(results: Sequence[Result], trainings: Sequence[Training], names: Names) -> list[Picture]:
    """The last trees of a run's fixed sentences, the first of an evaluation."""
    pictures = []
    for training in trainings:
        samples = read_metrics(training.folder / SAMPLES)
        texts = samples[-1].get("trees", []) if samples else []
        parsed = [ParsedSentence(words, tree) for tree, words in map(Tree.from_brackets, texts)]
        caption = f"{names(training.folder)}: trees of monitor.sentences at the end of training"
        pictures += _picture(label(training.folder), caption, parsed)
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
                caption = f"{names.of(result)}: {parser} trees of the first test sentences"
                pictures += _picture(f"{label(result.folder)}-{parser}", caption, parsed)
    return pictures


def _picture(name: str, caption: str, parsed: Sequence[ParsedSentence]) -> list[Picture]:
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    svg = as_svg(parsed[:_NUM_TREES]) if parsed else ""
    return [Picture(f"trees-{plain}.svg", "Trees", caption, svg)] if parsed else []


def tree_of_spans(num_words: int, spans: Sequence[Sequence[int]]) -> Tree:
    """The binary tree with these spans of two words and more."""
    known = {(i, j) for i, j in spans} | {(k, k) for k in range(num_words)}
    splits = {}
    for i, j in known:
        for k in range(i, j):
            if (i, k) in known and (k + 1, j) in known:
                splits[i, j] = k
    return Tree.from_splits(num_words, splits)
