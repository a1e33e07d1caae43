"""Options of tasks: defaults < file < command line; what a task leaves behind."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

from pipeline.cli.evaluate import main as evaluate
from pipeline.errors import ConfigError
from pipeline.evaluate import perplexity
from pipeline.evaluate.grammar_induction import evaluation as grammar_induction
from pipeline.evaluate.options import add_options, option, read_options
from pipeline.evaluate.results import ResultsFolder, fingerprint, table
from pipeline.evaluate.syntaxgym import evaluation as syntactic_generalization

CONFIGS = Path(__file__).parents[3] / "configs" / "evaluate"


@dataclass(frozen=True)
class Options:
    """Every kind of field."""

    beam: int = option(20, "hypotheses")
    rate: float | None = option(None, "a rate")
    sync: bool = option(True, "word by word")
    kind: Literal["inside", "both"] = option("both", "which")
    names: tuple[str, ...] = option((), "several")


def read(*arguments: str) -> Options:
    parser = ArgumentParser()
    add_options(parser, Options)
    return read_options(Options, parser.parse_args(arguments))


def test_command_line_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "o.yaml"
    file.write_text("beam: 5\nrate: 1e-3\nsync: false\nnames: [a]\n")

    assert read() == Options()
    assert read("--config", str(file)) == Options(5, 1e-3, False, "both", ("a",))
    given = read("--config", str(file), "--sync", "--beam", "7", "--names", "b", "c")
    assert given == Options(7, 1e-3, True, "both", ("b", "c"))
    assert read("--kind", "inside", "--rate", "2").rate == 2.0


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "o.yaml"
    file.write_text("beem: 5\n")
    with pytest.raises(ConfigError, match="unknown field beem; did you mean beam"):
        read("--config", str(file))
    file.write_text("beam: many\n")
    with pytest.raises(ConfigError, match="beam: 'many' is not allowed; it must be a whole number"):
        read("--config", str(file))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_load(path: Path) -> None:
    tasks = {
        "grammar_induction": (grammar_induction.Options, {"trees": "t"}),
        "syntactic_generalization": (
            syntactic_generalization.Options,
            {"model": ["m"], "suites": "s"},
        ),
        "language_modelling": (perplexity.Options, {"model": ["m"], "data": str(CONFIGS)}),
    }
    cls, given = next(value for name, value in tasks.items() if path.stem.startswith(name))

    options = read_options(cls, Namespace(config=str(path), **given))

    assert options.beam == {"grammar_induction": 20, "syntactic_generalization": 300}.get(
        path.stem, 20
    )
    # A config says what it stands for: each value is written out, not left to the defaults.
    assert set(_written(path)) <= {field.name for field in fields(cls)}


def _written(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line.partition(":")[0] for line in lines if line and not line.startswith("#")]


def test_results_are_written_with_versions(tmp_path: Path) -> None:
    folder = ResultsFolder.at(tmp_path / "a" / "b")

    folder.write({"score": 1.5, "name": "é"}, [{"item": 1}, {"item": 2}])

    results = json.loads((tmp_path / "a" / "b" / "results.json").read_text())
    assert (results["score"], results["name"]) == (1.5, "é")
    assert set(results["versions"]) >= {"torch", "tokenizers"}
    lines = (tmp_path / "a" / "b" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"item": 1}, {"item": 2}]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
        "predictions.jsonl",
        "results.json",
    ]


def test_tables_line_up() -> None:
    text = table(["name", "a", "bb"], [["x", 1.25, None], ["longer", "7", 100.0]])

    assert text.splitlines() == [
        "name      a     bb",
        "------  ---  -----",
        "x       1.2      -",
        "longer    7  100.0",
    ]


def test_fingerprints_follow_contents_and_order(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    a.write_text("1")
    b.write_text("2")
    c.write_text("1")

    assert fingerprint([a, b]) == fingerprint([c, b]) != fingerprint([b, a])
    assert fingerprint([a, b]) != fingerprint([a])


def test_a_task_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*argv: str) -> int:
        return evaluate(["grammar_induction", *argv])

    trees = tmp_path / "trees.txt"
    trees.write_text("(S (NN a) (VP (VB b) (NN c)))\n")
    given = ["--trees", str(trees), "--output", str(tmp_path / "out")]
    assert run(*given) == 0
    assert "right branching  100.0" in capsys.readouterr().out

    assert run("--beam", "many") == 2
    assert capsys.readouterr().err == (
        "grammar_induction: command line: argument --beam: invalid int value: 'many' (see --help)\n"
    )
    trees.write_text("(S\n")
    assert run(*given) == 3
    assert capsys.readouterr().err == (f"grammar_induction: {trees}:1: a bracket is never closed\n")
