"""The numbers of configs/paper.yaml in the report."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from pipeline.__main__ import main
from pipeline.evaluate.syntaxgym.suites import CIRCUITS
from pipeline.report.collect import collect
from pipeline.report.command import read_paper
from pipeline.report.tables import make_tables

GOLDEN = [
    (
        "glue",
        "GPST medium, OpenWebText (paper)",
        [91.97, 50.79, 85.69, 87.36, 87.60, 64.86, 81.80, 82.01, 79.01, 2.1],
    ),
    ("glue", "Ordered Memory (paper)", [90.4, *[None] * 5, 72.53, 73.2, None, None]),
    (
        "summarization",
        "GPST small w/o sync, OpenWebText (paper)",
        [29.44, 9.09, 23.20, 20.58, 35.63, 14.57, 24.93, 25.04, 32.34, 14.69, 29.98, 25.67],
    ),
    (
        "syntactic_generalization",
        "GPST small, WikiText-103 (paper)",
        [59.65, 73.21, 87.10, 97.83, 57.89, 64.78, 73.41],
    ),
    ("grammar_induction", "GPST small, WikiText-103, inside (paper)", [57.46]),
    ("grammar_induction", "GPST small, WikiText-103, left-to-right (paper)", [55.25]),
    ("grammar_induction", "oracle (paper)", [84.3]),
    ("training_efficiency", "URNNG (23M) (paper)", [130.6, 955.3, None, None]),
]
"""Table, row, and its cells in the order of the columns."""


def test_the_numbers_of_the_paper_stand_in_the_columns_of_measured_ones(runs: Path) -> None:
    found = collect([str(runs)])
    measured = {t.key: t.columns for t in make_tables(found.results, found.trainings)}
    blocks = read_paper(None)
    tables = {t.key: t for t in make_tables(found.results, found.trainings, blocks)}
    new = {key: t.columns[len(measured.get(key, [])) :] for key, t in tables.items()}
    assert {key: columns for key, columns in new.items() if columns} == {
        "glue": ["parameters (GPT-2 small = 1)"],
        "training_efficiency": [f"{n} tokens" for n in (128, 256, 512, 1024)],
    }
    for table, row, cells in GOLDEN:
        shown = tables[table].rows[row]
        columns = [c for c in tables[table].columns if c != "CNN/DM R-Lsum"]  # not the paper's
        assert [shown[c].mean if c in shown else None for c in columns] == cells
        assert row in tables[table].quoted
    for block in blocks:
        rows = tables[block["table"]].rows
        for name, values in block["rows"].items():
            numbers = {c: v for c, v in zip(block["columns"], values, strict=True) if v is not None}
            shown = rows[f"{name} ({block['label']})"]
            assert {column: cell.mean for column, cell in shown.items()} == numbers


def test_averages_of_the_paper_are_those_of_its_columns() -> None:
    """A slip in copying a number would show."""
    for block in read_paper(None):
        for name, values in block["rows"].items():
            part: list[float | None] = []
            for column, value in zip(block["columns"], values, strict=True):
                if not column.endswith("average"):
                    part.append(value)
                    continue
                if value is not None:
                    assert value == pytest.approx(fmean(filter(None, part)), abs=0.011), name
                part = []


def test_miniature_paper_and_own_rows_stand_side_by_side(runs: Path) -> None:
    circuit = {"mean": 30.0, "deviation": 0.0}
    results = {
        "task": "syntactic_generalization",
        "circuits": dict.fromkeys(CIRCUITS, circuit),
        "score": circuit,
        "runs": [{"model": {"path": "runs/miniature/gpst/exported"}, "score": 60.0}],
    }
    (runs / "miniature").mkdir()
    (runs / "miniature" / "results.json").write_text(json.dumps(results))
    assert main(["report", str(runs), "--output", str(runs / "report")]) == 0
    text = (runs / "report" / "report.md").read_text()
    for row in (
        "| GPST small, OpenWebText | 61.00 |",
        "| miniature, GPST | 30.00 | 30.00 |",
        "| *GPST medium, OpenWebText (paper)* | 85.96 |",
        "| *right branching (literature)* | 39.50 |",
    ):
        assert row in text
    assert "- paper: Hu et al., ACL 2024" in text
    assert "- literature: Kim et al. 2019" in text


def test_tables_of_the_paper_without_results_are_left_out(runs: Path) -> None:
    assert main(["report", str(runs / "gi"), "--output", str(runs / "report")]) == 0
    text = (runs / "report" / "report.md").read_text()
    assert [line for line in text.splitlines() if line[:3] == "## "] == [
        "## Overview",
        "## Grammar induction",
        "## Trees",
    ]
