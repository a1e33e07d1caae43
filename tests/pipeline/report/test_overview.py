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
    assert rows["right branching"]["corpus F1"].mean == 30.3
    assert rows["old"]["F1 inside"] == Cell(30.0)


def test_trees_of_a_file_are_named_by_it(collected, rows):
    assert rows["trees of theirs.ptb"] == {
        "F1": Cell(45.0),
        "corpus F1": Cell(35.0),
    }
    trees = [result for result in collected.results if result.task == "grammar_induction"]
    [table] = make_tables(trees, [])
    assert table.rows["trees of theirs.ptb"] == {"F1": Cell(45.0)}


def test_models_of_two_studies_are_not_seeds_of_one(tmp_path):
    for study, number in (("small", 60.0), ("large", 40.0)):
        run = {"path": f"runs/{study}/gpst/seed-0/exported", "token_perplexity": {"beam": number}}
        put(tmp_path / study, task="perplexity", runs=[run], gpt2_runs=[], token_perplexity={})
    found = collect([str(tmp_path)])
    assert overview(found.results, found.trainings).rows == {
        "large, GPST": {"perplexity": Cell(40.0)},
        "small, GPST": {"perplexity": Cell(60.0)},
    }


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


def measured(data: str, beam: int, numbers: tuple[float, float], **options: int) -> dict[str, Any]:
    """A perplexity of the two seeds of a GPST and of a GPT-2."""
    runs = [
        {"path": model("gpst", seed), "token_perplexity": {"beam": number}}
        for seed, number in enumerate(numbers)
    ]
    gpt2 = [{"path": model("gpt2", 0), "token_perplexity": 40.0}]
    about = {"data": f"data/{data}", "beam": beam, "options": options}
    marginal = {f"over a beam of {beam}": sum(numbers) / 2}
    return {
        "task": "perplexity",
        "runs": runs,
        "gpt2_runs": gpt2,
        "token_perplexity": marginal,
    } | about


def test_results_of_other_data_and_options_are_rows_of_their_own(tmp_path):
    put(tmp_path / "a", **measured("wiki", 20, (60.0, 61.0), context_tokens=256))
    put(tmp_path / "b", **measured("wiki", 3, (80.0, 81.0), context_tokens=256))
    put(tmp_path / "c", **measured("books", 20, (70.0, 71.0), context_tokens=1024))
    # The same once more: not two seeds more.
    put(tmp_path / "d", **measured("wiki", 20, (60.0, 61.0), context_tokens=256))
    for folder, trees, right in (("e", "/t/valid.txt", 48.3), ("f", "/t/test.txt", 40.4)):
        put(
            tmp_path / folder,
            task="grammar_induction",
            options={"trees": trees},
            runs=[{"model": {"i": {"path": model("gpst", 0)}}, "scores": {"inside": f1(50, 40)}}],
            scores={"inside": {"sentence_f1": 50.0}},
            baselines={"right branching": f1(right, 30.0)},
        )
    found = collect([str(tmp_path)])
    rows = overview(found.results, found.trainings).rows
    numbers = {row: {c: cell.mean for c, cell in cells.items()} for row, cells in rows.items()}
    assert numbers == {
        "GPST (data/wiki, contexts of 256, beam 20)": {"perplexity": 60.5},
        "GPST (data/wiki, contexts of 256, beam 3)": {"perplexity": 80.5},
        "GPST (data/books, contexts of 1,024, beam 20)": {"perplexity": 70.5},
        "GPT-2 (data/wiki, contexts of 256)": {"perplexity": 40.0},
        "GPT-2 (data/books, contexts of 1,024)": {"perplexity": 40.0},
        "GPST (t/valid.txt)": {"F1 inside": 50.0, "corpus F1 inside": 40.0},
        "GPST (t/test.txt)": {"F1 inside": 50.0, "corpus F1 inside": 40.0},
        "right branching (t/valid.txt)": {"F1": 48.3, "corpus F1": 30.0},
        "right branching (t/test.txt)": {"F1": 40.4, "corpus F1": 30.0},
    }
    assert {cell.count for cells in rows.values() for cell in cells.values()} == {1, 2}
    tables = {table.key: table.rows for table in make_tables(found.results, [])}
    assert tables["grammar_induction"]["right branching (t/test.txt)"]["F1"].mean == 40.4
    row = "GPST, seed 0 (t/valid.txt), inside"
    assert tables["grammar_induction"][row]["F1"].mean == 50.0
    perplexities = tables["perplexity"]
    assert (
        perplexities["GPST (data/wiki, contexts of 256, beam 3)"]["over a beam of 3"].mean == 80.5
    )
    assert len(perplexities) == 3


def test_without_evaluations_there_is_none(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tokens_per_second": 3.0}\n')
    found = collect([str(tmp_path)])
    assert not overview(found.results, found.trainings).rows
    assert not tree_details(found.results, Names()).rows
