"""Syntactic generalization: the command, its files and tables."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest
from small_suites import write_suites
from tokenizers import Tokenizer

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate import load_model
from pipeline.evaluate.load_model import LoadedModel
from pipeline.evaluate.options import add_options, read_options
from pipeline.evaluate.syntaxgym import evaluation as syntactic_generalization
from pipeline.evaluate.syntaxgym.suites import CIRCUITS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_suites(tmp_path / "suites")


def command(*arguments: str) -> int:
    parser = ArgumentParser()
    add_options(parser, syntactic_generalization.Options)
    options = read_options(syntactic_generalization.Options, parser.parse_args(arguments))
    return syntactic_generalization.run(options)


@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_command_writes_results_predictions_and_tables(
    kind: str,
    folder: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    pieces: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = request.getfixturevalue(f"tiny_{kind}")(pieces.get_vocab_size())
    loaded = LoadedModel(model, pieces, "models/tiny", "f" * 64)
    monkeypatch.setattr(load_model, "load_model", lambda path, device: loaded)
    config = tmp_path / "options.yaml"
    config.write_text(f"suites: {folder}\nbeam: 7\nmodel: [models/tiny]\n")
    output = tmp_path / "out"

    assert command("--config", str(config), "--output", str(output), "--beam", "5") == 0

    results = json.loads((output / "results.json").read_text())
    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert results["options"]["beam"] == 5
    (run,) = results["runs"]
    assert run["model"] == {"path": "models/tiny", "fingerprint": "f" * 64}
    assert run["suites"]["number_prep"]["num_items"] == 3
    assert len(lines) == 6
    # The score follows from the predictions.
    own = [line for line in lines if line["suite"] == "number_prep"]
    passed = [line["bits"]["match"]["2"] < line["bits"]["mismatch"]["2"] for line in own]
    assert [line["passes"] for line in own] == passed
    assert run["circuits"]["Agreement"] == pytest.approx(100 * sum(passed) / 3)
    assert results["circuits"]["Agreement"] == {
        "mean": pytest.approx(100 * sum(passed) / 3),
        "deviation": 0.0,
    }
    assert results["score"]["mean"] is run["score"] is None
    shown = capsys.readouterr().out
    for name in CIRCUITS:
        assert name in shown
    assert "The mean needs suites of all circuits." in shown


def test_several_models_give_mean_and_deviation(
    folder: Path,
    tmp_path: Path,
    tiny_gpt2: Callable,
    pieces: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tiny_gpt2(pieces.get_vocab_size())
    monkeypatch.setattr(
        load_model, "load_model", lambda path, device: LoadedModel(model, pieces, path, path)
    )
    output = tmp_path / "out"

    command("--model", "a", "b", "--suites", str(folder), "--output", str(output))

    results = json.loads((output / "results.json").read_text())
    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert [run["model"]["fingerprint"] for run in results["runs"]] == ["a", "b"]
    assert [line["model"] for line in lines] == ["a"] * 6 + ["b"] * 6
    assert "deviation" in capsys.readouterr().out

    some = dict.fromkeys(CIRCUITS, 40.0)
    none = {"score": None, "circuits": dict.fromkeys(CIRCUITS)}
    runs = [
        {"score": 40.0, "circuits": some, "first_formula": none},
        {"score": 50.0, "circuits": some | {"Licensing": 43.0}, "first_formula": none},
    ]
    found = syntactic_generalization.over_models(runs)
    assert found["score"] == {"mean": 45.0, "deviation": 5.0}
    assert found["circuits"]["Licensing"] == {"mean": 41.5, "deviation": 1.5}
    assert found["first_formula"]["score"] == {"mean": None, "deviation": None}


def test_command_line_is_checked(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model is missing"):
        command("--suites", str(folder))
    with pytest.raises(ConfigError, match="--suites is missing"):
        command("--model", "x")
    with pytest.raises(ConfigError, match="beam: 0 is not allowed"):
        command("--model", "x", "--suites", str(folder), "--beam", "0")
    output = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="no such folder"):
        command("--model", str(tmp_path / "x"), "--suites", str(folder), "--output", output)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        command("--model", "x", "--suites", "y", "--output", str(tmp_path / "file" / "out"))
    (tmp_path / "bad.yaml").write_text("beams: 3\n")
    with pytest.raises(ConfigError, match="unknown field beams; did you mean beam"):
        command("--config", str(tmp_path / "bad.yaml"))
