"""Grammar induction: the command with no model, one, the best of several, several seeds."""

from __future__ import annotations

import json
import statistics
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate import load_model
from pipeline.evaluate.grammar_induction import evaluation as grammar_induction
from pipeline.evaluate.grammar_induction import models
from pipeline.evaluate.grammar_induction.parse import parse
from pipeline.evaluate.load_model import LoadedModel
from pipeline.evaluate.options import add_options, read_options

TREES = """\
(S (NP (DT The) (NN dog)) (VP (VBD saw) (NP (DT a) (JJ big) (NN cat))) (. .))
(NP (DT the) (NN dog))
(INTJ (UH Ah) (. !))
(S (NP (NN it)) (, ,) (VP (VBD ran) (PP (IN to) (NP (PRP us)))))
(X (: --))
"""


def command(*arguments: str) -> int:
    parser = ArgumentParser()
    add_options(parser, grammar_induction.Options)
    options = read_options(grammar_induction.Options, parser.parse_args(arguments))
    return grammar_induction.run(options)


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    file = tmp_path / "trees.txt"
    file.write_text(TREES)
    return file


@pytest.fixture
def offer(tiny_gpst: Callable, pieces: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """offer("a", "b"): tiny models of those names, with seeds 0, 1, ..., that can be loaded."""

    def offered(*names: str) -> None:
        size = pieces.get_vocab_size()
        known = {
            name: LoadedModel(tiny_gpst(size, seed), pieces, name, f"fingerprint of {name}")
            for seed, name in enumerate(names)
        }
        monkeypatch.setattr(load_model, "load_model", lambda path, device: known[path])

    return offered


def test_command_scores_a_model_and_baselines(
    trees: Path, tmp_path: Path, offer: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    offer("m")
    output = tmp_path / "out"

    given = ["--model", "m", "--trees", str(trees), "--output", str(output), "--beam", "3"]
    assert command(*given) == 0

    results = json.loads((output / "results.json").read_text())
    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert results["data"] | {"sha256": "", "path": ""} == {
        "sha256": "", "path": "", "trees": 4, "one_word": 1, "no_words": 1
    }  # fmt: skip
    # Without punctuation, by hand, right branching: (1,5) (2,5) (3,5) (4,5) against (0,1) (2,5)
    # (3,5), F1 4/7; 1; and (1,3) (2,3), all right.
    right = results["baselines"]["right branching"]
    assert right["sentence_f1"] == pytest.approx(100 * (4 / 7 + 1 + 1) / 3)
    assert lines[0]["words"] == ["the", "dog", "saw", "a", "big", "cat"]
    assert set(results["scores"]) == {"inside", "left-to-right"}
    for parser, scores in results["scores"].items():
        # The score follows from the kept trees.
        f1 = []
        for line in lines:
            whole = [0, len(line["words"]) - 1]
            mine = [span for span in line["spans"][parser] if span != whole]
            common = len([span for span in mine if span in line["gold"]])
            if len(line["words"]) > 2:
                f1.append(2 * common / (len(mine) + len(line["gold"])))
        assert scores["sentence_f1"] == pytest.approx(100 * (sum(f1) + 1) / 3)
        assert results["model"][parser]["fingerprint"] == "fingerprint of m"
    shown = capsys.readouterr().out
    assert "5 trees: 1 of one word and 1 without words are not scored" in shown
    for name in ("inside", "left-to-right", "right branching", "oracle"):
        assert f"\n{name} " in shown


def test_trees_kept_by_the_other_rule_of_atoms_are_not_taken(
    trees: Path, tmp_path: Path, offer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("m")
    rules = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        rules.append((options["atoms"], len(arguments[1])))
        return parse(*arguments, **options)

    monkeypatch.setattr(models, "parse", recorded)
    given = ["--model", "m", "--trees", str(trees), "--parser", "inside"]
    given += ["--output", str(tmp_path / "out")]
    for atoms in ([], ["--atoms", "constrain_chart"], ["--atoms", "constrain_tree"]):
        assert command(*given, *atoms) == 0
    assert rules == [("constrain_tree", 4), ("constrain_chart", 4), ("constrain_tree", 0)]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["options"]["atoms"] == "constrain_tree"


def test_the_best_of_several_models_on_other_trees_is_tested(
    trees: Path, tmp_path: Path, offer: Callable
) -> None:
    seeds = "0123"
    offer(*seeds)
    output = tmp_path / "out"
    shared = ["--trees", str(trees), "--output", str(output), "--parser", "inside"]
    alone = {}
    for name in seeds:
        assert command("--model", name, *shared) == 0
        results = json.loads((output / "results.json").read_text())
        alone[name] = results["scores"]["inside"]["sentence_f1"]
    assert len(set(alone.values())) > 1

    assert command("--model", *seeds, "--select-on", str(trees), *shared) == 0

    results = json.loads((output / "results.json").read_text())
    best = max(alone.values())
    assert results["scores"]["inside"]["sentence_f1"] == pytest.approx(best)
    assert results["model"]["inside"]["selection_f1"] == pytest.approx(best)
    assert alone[results["model"]["inside"]["path"]] == pytest.approx(best)


def test_several_seeds_give_mean_and_deviation(
    trees: Path, tmp_path: Path, offer: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    offer("a", "b", "c")
    output = tmp_path / "out"

    command("--model", "a", "b", "c", "--trees", str(trees), "--output", str(output), "--beam", "2")

    results = json.loads((output / "results.json").read_text())
    assert [run["model"]["inside"]["path"] for run in results["runs"]] == ["a", "b", "c"]
    for parser in ("inside", "left-to-right"):
        values = [run["scores"][parser]["sentence_f1"] for run in results["runs"]]
        assert results["scores"][parser]["sentence_f1"] == pytest.approx(statistics.fmean(values))
        found = results["f1_over_models"][parser]
        assert found["values"] == values
        assert found["deviation"] == pytest.approx(statistics.pstdev(values))
    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert [line["model"] for line in lines] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    assert " deviation " in capsys.readouterr().out


def test_an_interrupted_evaluation_goes_on(
    trees: Path, tmp_path: Path, offer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("m")
    given = ["--model", "m", "--trees", str(trees), "--beam", "3", "--batch-tokens", "1"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command(*given, "--output", str(whole))
    parsed: list[int] = []

    def counted(model: Any, sentences: Any, **options: Any) -> Any:
        for number, tree in parse(model, sentences, **options):
            parsed.append(number)
            yield number, tree
            if options["parser"] == "left-to-right" and len(parsed) == 6:
                raise KeyboardInterrupt

    monkeypatch.setattr(models, "parse", counted)
    with pytest.raises(KeyboardInterrupt):
        command(*given, "--output", str(broken))
    assert len(parsed) == 6
    assert not (broken / "results.json").exists()

    command(*given, "--output", str(broken))

    assert len(parsed) == 8  # of four sentences by two parsers
    first, second = (json.loads((f / "results.json").read_text()) for f in (whole, broken))
    assert second["scores"] == first["scores"]
    assert second["model"]["left-to-right"]["sentences_per_second"] is None
    lines = [(folder / "predictions.jsonl").read_text() for folder in (whole, broken)]
    assert lines[0] == lines[1]
    command(*given, "--output", str(broken), "--beam", "2")
    assert len(parsed) == 12  # another beam: the search again, not the inside trees


def test_punctuation_and_case_can_stay(trees: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"

    command(
        "--trees", str(trees), "--punctuation", "--no-lower", "--max-sentences", "3",
        "--output", str(output),
    )  # fmt: skip

    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert [line["words"][-1] for line in lines] == [".", "dog", "!"]
    assert lines[0]["words"][0] == "The"
    assert lines[0]["gold"] == [[0, 1], [2, 5], [3, 5]]


def test_wrong_usage_is_one_line(
    trees: Path,
    tmp_path: Path,
    tiny_gpt2: Callable,
    tiny_gpst: Callable,
    pieces: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = ["--trees", str(trees), "--output", str(tmp_path / "out")]
    with pytest.raises(ConfigError, match="--trees is missing"):
        command("--model", "m")
    with pytest.raises(ConfigError, match="either --model or --predictions"):
        command("--model", "a", "--predictions", "b", *shared)
    with pytest.raises(ConfigError, match="num_random: 0 is not allowed"):
        command("--num-random", "0", *shared)
    size = pieces.get_vocab_size()
    for model, message, kind in (
        (tiny_gpt2(size), "is no GPST and induces no trees", ConfigError),
        (
            tiny_gpst(size, max_context_tokens=8),
            "sentence 1 has 10 tokens, but the .* 8",
            DataError,
        ),
    ):
        loaded = LoadedModel(model, pieces, "m", message)
        monkeypatch.setattr(load_model, "load_model", lambda path, device, loaded=loaded: loaded)
        with pytest.raises(kind, match=message):
            command("--model", "m", *shared)
