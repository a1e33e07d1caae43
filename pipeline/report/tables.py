"""The paper's tables from results: a row for each model, in a cell a mean with its std."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from pipeline.errors import ConfigError
from pipeline.evaluate.syntaxgym.suites import CIRCUITS
from pipeline.monitor.metrics import METRICS, shown_in
from pipeline.report.collect import Result, Training
from pipeline.report.names import Names


@dataclass(frozen=True)
class Cell:
    """A number with its standard deviation, which is 0 for a single value."""

    mean: float
    std: float = 0.0
    count: int = 1

    def __str__(self) -> str:
        if isinstance(self.mean, int):
            return f"{self.mean:,}"
        whole = abs(self.mean) >= 1000 or (self.mean > 100 and self.mean == round(self.mean))
        text = f"{self.mean:,.0f}" if whole else f"{self.mean:.2f}"
        return f"{text} ± {self.std:.2f}" if self.count > 1 else text


@dataclass
class Table:
    """One table of the paper."""

    key: str
    title: str
    columns: list[str]
    note: str = ""
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)
    quoted: set[str] = field(default_factory=set)
    """Rows that are not measured here."""
    sources: list[str] = field(default_factory=list)
    """Where the quoted rows come from."""

    def put(self, row: str, column: str, cell: Cell) -> None:
        """Sets a cell; adds the column if it is new."""
        if column not in self.columns:
            self.columns.append(column)
        self.rows.setdefault(row, {})[column] = cell


_GLUE = {
    "sst2": {"accuracy": "SST-2"},
    "cola": {"matthews": "CoLA"},
    "mrpc": {"f1": "MRPC"},
    "qqp": {"f1": "QQP"},
    "qnli": {"accuracy": "QNLI"},
    "rte": {"accuracy": "RTE"},
    "mnli": {"accuracy/matched": "MNLI-m", "accuracy/mismatched": "MNLI-mm"},
}
_SUMMARIES = {"xsum": "XSum", "cnn_dailymail": "CNN/DM", "gigaword": "Gigaword"}
_ROUGE = {"ROUGE-1": "R-1", "ROUGE-2": "R-2", "ROUGE-L": "R-L"}
_BY_SENTENCES = {"ROUGE-Lsum": "R-Lsum"}
_AVERAGE = "average"


def make_tables(
    results: Sequence[Result], trainings: Sequence[Training], quoted: Iterable[dict[str, Any]] = ()
) -> list[Table]:
    """The tables for which there are results, with rows of numbers from elsewhere.

    Args:
        quoted: blocks of configs/paper.yaml.

    Raises:
        ConfigError: a block is of a table that is not in the report.
    """
    makers = (_glue, _summarization, _induction, _syntactic, _perplexity)
    names = Names(results, trainings)
    tables = [make(results, names) for make in makers]
    tables += [_training(trainings, names), _efficiency()]
    by_key = {table.key: table for table in tables}
    shown = {key for key, table in by_key.items() if table.rows}
    if trainings:
        shown.add("training_efficiency")
    for block in quoted:
        if block["table"] not in by_key:
            raise ConfigError(f"--paper: no table {block['table']!r}; tables: {', '.join(by_key)}")
        _quote(by_key[block["table"]], block)
    return [table for key, table in by_key.items() if key in shown and table.rows]


def _quote(table: Table, block: dict[str, Any]) -> None:
    for name, values in block["rows"].items():
        row = f"{name} ({block['label']})"
        table.quoted.add(row)
        for column, value in zip(block["columns"], values, strict=True):
            if value is not None:
                table.put(row, column, Cell(float(value)))
    table.sources.append(f"{block['label']}: {block['source']}")


def _cell(score: dict[str, Any]) -> Cell:
    return Cell(score["mean"], score["deviation"], len(score["values"]))


def _of(results: Sequence[Result], task: str) -> Iterator[tuple[Result, str]]:
    """The results of a task, each with what comes after "task/"."""
    for result in results:
        name, _, rest = result.task.partition("/")
        if name == task:
            yield result, rest


def _row(result: Result, names: Names) -> str:
    """The model's name, and the setting that differs from the protocol's."""
    options = result.values.get("options", {})
    section = options.get(result.task.partition("/")[0]) or {}  # of a fine-tuning
    unsynced = section.get("sync", options.get("sync", True)) is False
    return names.of(result) + (" (w/o sync)" if unsynced else "")


def _glue(results: Sequence[Result], names: Names) -> Table:
    columns = [column for scores in _GLUE.values() for column in scores.values()]
    table = Table(
        "glue",
        "Language understanding: GLUE, development sets",
        [*columns, _AVERAGE],
        "Matthews correlation for CoLA, F1 for MRPC and QQP, accuracy elsewhere, in percent; mean "
        "± deviation over seeds. The average is that of all eight columns.",
    )
    for result, task in _of(results, "glue"):
        for score, column in _GLUE.get(task, {}).items():
            table.put(_row(result, names), column, _cell(result.values["scores"][score]))
    for cells in table.rows.values():
        if all(column in cells for column in columns):
            cells[_AVERAGE] = Cell(fmean(cells[column].mean for column in columns))
    return table


def _summarization(results: Sequence[Result], names: Names) -> Table:
    parts = (*_ROUGE.values(), _AVERAGE)
    columns = [f"{name} {part}" for name in _SUMMARIES.values() for part in parts]
    table = Table(
        "summarization",
        "Summarization",
        columns,
        "F of rouge-score's rouge1, rouge2 and rougeL "
        "(R-L) with stemming on the test sets, and their average. R-Lsum: rougeLsum, by sentences.",
    )
    for result, dataset in _of(results, "summarization"):
        row, name = _row(result, names), _SUMMARIES.get(dataset, dataset)
        cells = {part: _cell(result.values["scores"][score]) for score, part in _ROUGE.items()}
        cells[_AVERAGE] = Cell(fmean(cell.mean for cell in cells.values()))
        scores = result.values["scores"]
        cells |= {part: _cell(scores[k]) for k, part in _BY_SENTENCES.items() if k in scores}
        for part, cell in cells.items():
            table.put(row, f"{name} {part}", cell)
    return table


def _induction(results: Sequence[Result], names: Names) -> Table:
    table = Table(
        "grammar_induction",
        "Grammar induction",
        ["F1"],
        "Sentence-level unlabelled F1. Left-to-right: word-level search; inside: the composition "
        "model's trees.",
    )
    for result, _ in _of(results, "grammar_induction"):
        name = _row(result, names)
        fine_tuned = "seeds" in result.values
        for parser, score in result.values.get("scores", {}).items():
            short = parser.removeprefix("F1/")
            over = result.values.get("f1_over_models", {}).get(parser)
            of_models = score if fine_tuned else over
            cell = _cell(of_models) if of_models else Cell(score["sentence_f1"])
            row = name if parser == "predictions" else f"{name}, {short}"  # a file's trees
            table.put(row, "F1", cell)
        for baseline, score in result.values.get("baselines", {}).items():
            row = baseline + names.setting(result)
            table.put(row, "F1", Cell(score["sentence_f1"]))
    return table


def _syntactic(results: Sequence[Result], names: Names) -> Table:
    table = Table(
        "syntactic_generalization",
        "Syntactic generalization: SyntaxGym",
        [*CIRCUITS, _AVERAGE],
        "Share of items whose predictions hold, in percent, by circuit; the average is that of "
        "the circuits.",
    )
    for result, _ in _of(results, "syntactic_generalization"):
        runs = result.values.get("runs", [])
        parts = {**result.values["circuits"], _AVERAGE: result.values["score"]}
        for column, score in parts.items():
            if score["mean"] is not None:
                cell = Cell(score["mean"], score["deviation"], len(runs))
                table.put(names.of(result), column, cell)
    return table


def _perplexity(results: Sequence[Result], names: Names) -> Table:
    table = Table(
        "perplexity",
        "Language modelling: perplexity per token on held-out text",
        [],
        "Given its own trees GPST knows what they saw of the future; marginalised over a beam it "
        "compares with GPT-2.",
    )
    for result, _ in _of(results, "perplexity"):
        row = names.of(result)
        stds = result.values.get("deviation", {})
        gpt2: dict[str, list[float]] = {}
        for run in result.values.get("gpt2_runs", []):
            gpt2.setdefault(names(run["path"], seed=False), []).append(run["token_perplexity"])
        for name, values in gpt2.items():
            column = "GPT-2" if len(gpt2) == 1 else name
            table.put(row, column, Cell(fmean(values), pstdev(values), len(values)))
        for column, value in result.values["token_perplexity"].items():
            if column.startswith("GPT-2") and result.values.get("gpt2_runs"):
                continue  # above: each model by itself
            count = 1 if column == "unigram" else len(result.values.get("runs", []))
            table.put(row, column, Cell(value, stds.get(column, 0.0), count))
    return table


def _training(trainings: Sequence[Training], names: Names) -> Table:
    table = Table("training", "Training runs", [], "Last logged values; tokens a second: median.")
    speed = METRICS["tokens_per_second"]
    folders: dict[str, Path] = {}
    for training in trainings:
        row = names(training.folder)
        if folders.setdefault(row, training.folder) != training.folder:
            row += f" ({training.folder})"
        for metric in shown_in("table"):
            if values := training.values(metric.name):
                table.put(row, metric.column or metric.name, Cell(values[-1]))
        if rates := sorted(filter(None, training.values(speed.name))):
            table.put(row, speed.unit, Cell(rates[len(rates) // 2]))
    return table


def _efficiency() -> Table:
    return Table(
        "training_efficiency",
        "Training efficiency",
        [],
        "Time on the same number of tokens by length of sentence, GPST = 1; on your machine: "
        "benchmarks/bench_length.py.",
    )
