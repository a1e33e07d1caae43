"""Fine-tuning on a treebank's words, as a whole: results, user errors, the dry run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from pipeline.__main__ import main
from pipeline.finetune.examples import ExampleSource

TREES = """\
(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT the) (NN cat))) (. .))
(S (NP (DT A) (NN cat)) (VP (VBZ sleeps)))
(S (NP (NN dog)) (VP (VBZ barks) (PP (IN at) (NP (DT the) (NN cat)))))
"""


@pytest.fixture
def induction_config(tmp_path, model_folder) -> Path:
    (tmp_path / "trees.txt").write_text(TREES)
    trees = str(tmp_path / "trees.txt")
    config = {
        "run_dir": str(tmp_path / "run"),
        "init": str(model_folder("gpst")),
        "grammar_induction": {"train": trees, "valid": trees, "test": trees, "beam": 4},
        "train": {"num_epochs": 2, "global_batch_contexts": 2, "micro_batch_contexts_per_rank": 2},
        "optim": {"learning_rate": 1e-3},
        "monitor": {"log_every_steps": 1},
    }
    path = tmp_path / "induction.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_grammar_induction_scores_the_best_epoch_with_both_parsers(
    tmp_path, induction_config, finetune
):
    done = finetune(induction_config)
    assert done.returncode == 0, done.stderr
    assert "F1/left-to-right" in done.stdout
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert set(results["scores"]) == {"F1/inside", "F1/left-to-right"}
    seed = tmp_path / "run" / "seed-0"
    own = json.loads((seed / "results.json").read_text())
    assert own["baselines"]["oracle"]["sentence_f1"] == 100.0
    metrics = [json.loads(line) for line in (seed / "metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["eval/score"] for line in metrics if "eval/score" in line}
    assert sorted(scores) == [2, 4]
    assert own["step"] == max(scores, key=lambda step: (scores[step], -step))
    # Training, validation and test are the same trees here.
    assert own["scores"]["F1/left-to-right"] == pytest.approx(scores[own["step"]])
    lines = [json.loads(line) for line in (seed / "predictions.jsonl").read_text().splitlines()]
    assert lines[0]["words"] == ["the", "dog", "sees", "the", "cat"]
    assert set(lines[0]["spans"]) == {"inside", "left-to-right"}


@pytest.fixture
def same_environment():
    """The trainer fills in the variables of a launcher."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("same_environment")
@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("init=nowhere", 2, "finetune: init nowhere: no such folder"),
        ("init={gpt2}", 2, "model-gpt2: is no GPST, and grammar_induction needs its trees"),
        ("grammar_induction.test=gone.txt", 2, "grammar_induction.test gone.txt: no such file"),
        ("grammar_induction.atoms=true", 2, "grammar_induction.atoms: true is not allowed; it"),
        ("train.global_batch_contexts=3", 2, "finetune: train.global_batch_contexts 3 is not"),
    ],
)
def test_user_errors_end_with_one_line(
    induction_config, model_folder, capsys, override, code, message
):
    if "{gpt2}" in override:
        override = override.format(gpt2=model_folder("gpt2"))
    assert main(["finetune", "--config", str(induction_config), override]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.usefixtures("same_environment")
def test_a_dry_run_tells_the_plan_and_prepares_the_examples(induction_config, capsys, tmp_path):
    arguments = ["finetune", "--config", str(induction_config), "seeds=[3, 4]", "--dry-run"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "task         grammar_induction: 3 examples" in out
    assert "seeds        3, 4" in out
    source = ExampleSource(tmp_path / "run" / "examples")
    assert source.num_contexts == 3
    # A byte is a token, but for a space with one of these letters after it.
    batch = source.batch([2])
    words = ["dog", "barks", "at", "the", "cat"]
    assert batch.inside_word is not None
    pieces = [len(word) + (word[0] not in "abcdefgxy") for word in words]
    expected = [k < n - 1 for n in pieces for k in range(n)] + [False]
    assert batch.inside_word.tolist() == expected

    assert main([*arguments, "grammar_induction.train_with_atoms=false"]) == 0
    assert ExampleSource(tmp_path / "run" / "examples").batch([2]).inside_word is None
