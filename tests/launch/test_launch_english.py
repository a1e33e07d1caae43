"""English: the demo's settings find trees that are better than right-branching ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpst.export.huggingface import open_model
from pipeline.cli.evaluate import main as evaluate
from pipeline.evaluate.results import RESULTS

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
TREES = LAUNCH / "demo_trees.txt"


def scores(model: Path, output: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Of the model's trees of 64 sentences that were bracketed by hand, and of right-branching."""
    given = ["--model", str(model), "--trees", str(TREES), "--parser", "inside", "--quiet"]
    assert evaluate(["grammar_induction", *given, "--output", str(output)]) == 0
    results = json.loads((output / RESULTS).read_text())
    return results["scores"]["inside"], results["baselines"]["right branching"]


def test_the_demo_s_model_is_small_and_its_trees_are_good(tmp_path):
    models = [LAUNCH / "demo_model" / name for name in ("gpst", "gpt2")]
    assert sum(file.stat().st_size for model in models for file in model.iterdir()) < 8e6
    of_tokenizers = {(model / "tokenizer.json").read_bytes() for model in models}
    assert len(of_tokenizers) == 1
    open_model(models[1]).model()
    induced, right = scores(models[0], tmp_path)
    assert induced["sentence_f1"] > right["sentence_f1"] + 5
    assert induced["corpus_f1"] > right["corpus_f1"] + 5


@pytest.mark.slow
@pytest.mark.dist
def test_english_is_learned_from_nothing(clean_environment, tmp_path, free_port):
    """300 steps on the State of the Union addresses, as `make demo INPUT=...` takes them."""

    def run(*command: str) -> None:
        environ = clean_environment | {"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(LAUNCH.parent)}
        environ |= {"LOCAL_SIZE": "2", "MASTER_PORT": str(free_port())}
        done = subprocess.run(
            command, env=environ, cwd=LAUNCH.parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    text = subprocess.check_output(
        ["bash", "-c", "source launch/typed.bash; speeches"],
        cwd=LAUNCH.parent, env=clean_environment, text=True,
    ).strip()  # fmt: skip
    data, tokenizer, runs = (str(tmp_path / name) for name in ("data", "tokenizer", "run"))
    source = ["--source", "text", "--input", text]
    prep = [sys.executable, "-m", "data_prep"]
    words = ["--kind", "wordpiece", "--vocab-size", "4096"]
    run(*prep, "tokenizer", *source, *words, "--output", tokenizer)
    run(*prep, "build", *source, "--tokenizer", tokenizer, "--output", data)
    config = ["--config", "configs/run/demo.yaml", f"data.path={data}", f"run_dir={runs}"]
    run("bash", "launch/pretrain.sh", *config, "evaluate.every_steps=null")
    run("bash", "launch/convert.sh", "to-hf", runs, f"{runs}/exported")
    induced, right = scores(tmp_path / "run" / "exported", tmp_path / "scores")
    assert induced["sentence_f1"] > right["sentence_f1"]
    assert induced["corpus_f1"] > right["corpus_f1"]
