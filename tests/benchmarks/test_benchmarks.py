"""The benchmarks of the model run, on inputs too small to tell anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks import initialisation, mutation, punctuation_trees
from data_prep.format.shard import open_dataset
from gpst.chart.phrase_edges import CLOSING, WORD
from pipeline.data import punctuation

HOME = Path(__file__).parents[2]
TINY = "configs/model/gpst_tiny.yaml"
COMMANDS = {
    "bench_step": f"--config {TINY} --tokens 64 --repeat 1 --vocab-size 64 --no-memory",
    "bench_length": "--tokens 1024 --repeat 1",
    "bench_plan": "--tokens 512 --repeat 1",
}
COST = HOME / "docs" / "reproduce.md"
NAMES = ["bench_step", "bench_plan", pytest.param("bench_length", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_ends_with_a_line_of_json(name: str) -> None:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *COMMANDS[name].split()],
        cwd=HOME, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert json.loads(lines[-1])["benchmark"] == name.removeprefix("bench_")


def test_every_listed_mutant_is_of_the_code_as_it_is() -> None:
    entries = yaml.safe_load(mutation.LIST.read_text())["mutants"]
    assert len(mutation.listed(entries, "*")) == len(entries) >= 140


def test_initialisations_are_compared_and_finished_cells_left_out(
    toy_dataset: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    file = tmp_path / "results.jsonl"
    common = ["initialisation", "--results", str(file)]
    grid = ["--data", str(toy_dataset), "--rates", "0.01", "--seeds", "0", "--steps", "4"]
    grid += ["--measure-at", "1", "2", "--max-contexts", "1", "--inits", "paper"]

    def run(*arguments: str) -> list[dict]:
        monkeypatch.setattr(sys, "argv", [*common, *arguments])
        initialisation.main()
        return initialisation.read(file)

    first = run(*grid)
    assert [(line["init"], line["after"]) for line in first] == [("paper", 1), ("paper", 2)]
    lines = run(*grid, "width_scaled", "width_scaled:heads")
    assert lines[:2] == first
    assert [line["init"] for line in lines[3::2]] == ["width_scaled", "width_scaled:heads"]
    assert len({line["perplexity"] for line in lines[1::2]}) == 3
    capsys.readouterr()
    assert run("--table") == lines
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 2 + 6
    assert f"| paper | 0: {first[0]['perplexity']:.0f} |" in table[2]


def test_trees_from_punctuation_are_scored(
    toy_dataset: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    file = tmp_path / "trees.txt"
    file.write_text("(S (NP (X w5) (X w6)) (VP (X w7) (NP (X w8) (X w9))))\n" * 3)
    kinds = np.full(open_dataset(toy_dataset).manifest.vocab_size, WORD, np.int8)
    kinds[:3] = CLOSING
    monkeypatch.setattr(punctuation, "token_kinds", lambda *_: kinds)
    command = ["x", "--data", str(toy_dataset), "--trees", str(file), "--most", "2"]
    monkeypatch.setattr(sys, "argv", command)
    punctuation_trees.main()
    scores = json.loads(capsys.readouterr().out)
    assert scores["num_sentences"] == 2
    # Of (w7 w8 w9), (w8 w9) and (w6 .. w9) two are right, and two of three gold spans are found.
    assert scores["right_branching"]["f1"] == pytest.approx(100 * 2 / 3)
    assert 0 <= scores["sentence_f1"] <= 100


def test_the_costs_in_the_docs_are_those_counted() -> None:
    names = {"gpst_small": "gpst small", "gpst_medium": "gpst medium", "gpt2_small": "gpt2 small"}
    done = subprocess.run(
        [sys.executable, "benchmarks/reproduction_cost.py", "--models", *names],
        cwd=HOME, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["model"] for row in rows] == list(names)
    lines = COST.read_text(encoding="utf-8").splitlines()
    for row in rows:
        begin = f"| {names[row['model']]} | {row['parameters'] / 1e6:.1f} | "
        [line] = [line for line in lines if line.startswith(begin)]
        cells = [float(cell.replace(",", "")) for cell in line.split("|")[3:8]]
        hours = row["hours"]
        counted = [row["gflop_per_token"], row["tokens_per_second"], hours["wikitext103"],
                   hours["openwebtext"], row["checkpoint_gib"]]  # fmt: skip
        assert cells == pytest.approx(counted, rel=0.04)
