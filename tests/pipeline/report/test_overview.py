"""The overview: a row for each model, its seeds together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.report.collect import Collected, collect
from pipeline.report.names import Names
from pipeline.report.overview import overview
from pipeline.report.tables import Cell, make_tables
from pipeline.report.tree_scores import tree_details


def put(folder: Path, **values: object) -> None:
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(values))


def f1(sentence: float, corpus: float) -> dict[str, Any]:
    """A score whose short sentences are 10 points better, without a gold ADVP."""
    return {
        "sentence_f1": sentence,
        "corpus_f1": corpus,
        "f1_by_length": {"10": sentence + 10, "20": sentence},
        "recall_by_label": {"NP": sentence - 20, "ADVP": None},
    }


def model(name: str, seed: int) -> str:
    return f"runs/{name}/seed-{seed}/exported"


@pytest.fixture
def collected(tmp_path: Path) -> Collected:
    put(
        tmp_path / "perplexity",
        task="perplexity",
        runs=[
            {
                "path": model("gpst", seed),
                "token_perplexity": {
                    "GPST given its induced trees": 50.0 + seed,
                    "beam": 60 + seed,
                },
            }
            for seed in (0, 1)
        ],
        gpt2_runs=[{"path": model("gpt2", 0), "token_perplexity": 40.0}],
        token_perplexity={},
    )
    for seed in (0, 1):
        fine_tuning = tmp_path / "gpst" / f"seed-{seed}" / "trees"
        about = {"path": model("gpst", seed)}
        put(fine_tuning, task="grammar_induction", model=about, seeds=[0], scores={})
        details = {"inside": f1(50.0 + 2 * seed, 40.0), "left-to-right": f1(49.0, 39.0)}
        baselines = {"right branching": f1(40.4, 30.3)}
        put(fine_tuning / "seed-0", model=about, details=details, baselines=baselines)
        speeds = [{"step": k, "tokens_per_second": rate} for k, rate in enumerate((5.0, 7.0, 9.0))]
        run = tmp_path / "runs" / "gpst" / f"seed-{seed}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in speeds))
    put(
        tmp_path / "induction",
        task="grammar_induction",
        runs=[{"model": {"inside": {"path": "runs/old"}}, "scores": {"inside": f1(30.0, 20.0)}}],
        scores={},
        baselines={},
    )
    put(
        tmp_path / "gi",
        task="grammar_induction",
        options={"predictions": "/home/me/theirs.ptb"},
        scores={"predictions": f1(45.0, 35.0)},
        baselines={},
    )
    put(
        tmp_path / "suites",
        task="syntactic_generalization",
        runs=[
            {"model": {"path": model("gpst", 0)}, "score": 61.0},
            {"model": {"path": model("gpt2", 0)}, "score": None},
        ],
    )
    return collect([str(tmp_path)])


@pytest.fixture
def rows(collected: Collected) -> dict[str, dict[str, Cell]]:
    return overview(collected.results, collected.trainings).rows


def test_seeds_are_one_row(rows):
    gpst = rows["GPST"]
    assert gpst["perplexity"] == Cell(60.5, 0.5, 2)
    assert gpst["given its trees"] == Cell(50.5, 0.5, 2)
    assert gpst["F1 inside"] == Cell(51.0, 1.0, 2)
    assert gpst["corpus F1 inside"] == Cell(40.0, 0.0, 2)
    assert gpst["F1 left to right"].mean == 49.0
    assert gpst["SyntaxGym"] == Cell(61.0)
    assert gpst["tokens/s"] == Cell(7.0, 0.0, 2)


def test_baselines_and_evaluations_have_rows(rows):
    assert rows["GPT-2"] == {"perplexity": Cell(40.0)}
    assert rows["right branching"]["corpus F1 inside"].mean == 30.3
    assert rows["old"]["F1 inside"] == Cell(30.0)


def test_trees_of_a_file_are_named_by_it(collected, rows):
    assert rows["trees of theirs.ptb"] == {
        "F1 inside": Cell(45.0),
        "corpus F1 inside": Cell(35.0),
    }
    trees = [result for result in collected.results if result.task == "grammar_induction"]
    [table] = make_tables(trees, [])
    assert table.rows["trees of theirs.ptb"] == {"test F1": Cell(45.0)}


def test_trees_by_length_and_label(collected):
    rows = tree_details(collected.results, Names()).rows
    assert rows["GPST, inside"] == {
        "up to 10 words": Cell(61.0, 1.0, 2),
        "up to 20 words": Cell(51.0, 1.0, 2),
        "NP": Cell(31.0, 1.0, 2),
    }
    assert set(rows) == {
        "GPST, inside",
        "GPST, left to right",
        "old, inside",
        "right branching",
        "trees of theirs.ptb",
    }


def test_without_evaluations_there_is_none(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tokens_per_second": 3.0}\n')
    found = collect([str(tmp_path)])
    assert not overview(found.results, found.trainings).rows
    assert not tree_details(found.results, Names()).rows
