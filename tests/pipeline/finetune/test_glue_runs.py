"""GLUE as a whole: learning, files for the server, resume, several seeds, two ranks."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.run import REPOSITORY


def toy_sst2(folder: Path, count: int, seed: int) -> None:
    """Texts of two kinds of words, which the label tells: to be learned from few examples."""
    source = random.Random(seed)
    own = folder / "SST-2"
    own.mkdir(parents=True)
    for split, size in (("train", count), ("dev", 40), ("test", 6)):
        lines = []
        for number in range(size):
            label = source.randrange(2)
            words = [source.choice(("ace", "bdf")[label]) for _ in range(source.randint(2, 6))]
            text = " ".join(words)
            lines.append(f"{number}\t{text}" if split == "test" else f"{text}\t{label}")
        header = "index\tsentence" if split == "test" else "sentence\tlabel"
        (own / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n")


def toy_config(tmp_path: Path, init: Path) -> Path:
    config = tmp_path / "toy.yaml"
    config.write_text(
        json.dumps(
            {
                "run_dir": str(tmp_path / "run"),
                "init": str(init),
                "seeds": [0],
                "glue": {"task": "sst2", "path": str(tmp_path / "glue")},
                "train": {
                    "num_epochs": 3,
                    "global_batch_contexts": 16,
                    "micro_batch_contexts_per_rank": 16,
                },
                "optim": {
                    "learning_rate": 5e-3,
                    "parser_learning_rate": 5e-3,
                    "warmup_fraction": 0.1,
                },
                "monitor": {"log_every_steps": 5},
            }
        )
    )
    return config


def results_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_a_separable_toy_task_is_learned(tmp_path, model_folder, finetune):
    toy_sst2(tmp_path / "glue", 240, 1)
    done = finetune(toy_config(tmp_path, model_folder("gpst")))
    assert done.returncode == 0, done.stderr
    assert "SST-2 dev" in done.stdout

    results = results_of(tmp_path / "run")
    assert results["scores"]["accuracy"]["mean"] >= 95.0
    assert results["data"]["examples"] == 240
    seed = tmp_path / "run" / "seed-0"
    lines = [json.loads(line) for line in (seed / "predictions.jsonl").read_text().splitlines()]
    right = np.mean([line["found"] == line["label"] for line in lines])
    assert 100 * right == pytest.approx(results["scores"]["accuracy"]["mean"])
    submission = (seed / "SST-2.tsv").read_text().splitlines()
    assert submission[0] == "index\tprediction"
    tests = (tmp_path / "glue" / "SST-2" / "test.tsv").read_text().splitlines()[1:]
    expected = [f"{line.split()[0]}\t{int(line[-1] in 'bdf')}" for line in tests]
    assert sum(a == b for a, b in zip(submission[1:], expected, strict=True)) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_seeds_and_resume(tmp_path, model_folder, finetune, kind):
    toy_sst2(tmp_path / "glue", 240, 1)
    config = toy_config(tmp_path, model_folder(kind))
    stopped = finetune(config, "train.stop_at_step=20")
    assert stopped.returncode == 0, stopped.stderr
    assert not (tmp_path / "run" / "results.json").exists()
    done = finetune(config)
    assert done.returncode == 0, done.stderr
    assert "resumed from" in done.stderr
    whole = finetune(config, f"run_dir={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    torn = (tmp_path / "run" / "seed-0" / "predictions.jsonl").read_bytes()
    assert torn == (tmp_path / "whole" / "seed-0" / "predictions.jsonl").read_bytes()
    assert results_of(tmp_path / "run")["scores"]["accuracy"]["mean"] >= 95.0

    # What is done is not done again; another seed goes on beside it.
    file = tmp_path / "run" / "seed-0" / "results.json"
    before = file.stat().st_mtime_ns
    assert finetune(config, "seeds=[0, 1]").returncode == 0
    assert file.stat().st_mtime_ns == before
    both = results_of(tmp_path / "run")
    values = both["scores"]["accuracy"]["values"]
    assert both["seeds"] == [0, 1]
    assert both["scores"]["accuracy"]["mean"] == pytest.approx(np.mean(values))
    assert both["scores"]["accuracy"]["deviation"] == pytest.approx(np.std(values))


@pytest.mark.slow
@pytest.mark.dist
def test_two_ranks_share_training_and_evaluation(
    tmp_path, model_folder, clean_environment, free_port
):
    toy_sst2(tmp_path / "glue", 240, 1)
    config = toy_config(tmp_path, model_folder("gpst"))
    done = subprocess.run(
        [
            "bash",
            str(REPOSITORY / "launch" / "finetune.sh"),
            "--config",
            str(config),
            "train.micro_batch_contexts_per_rank=8",
        ],
        env=clean_environment
        | {"LOCAL_SIZE": "2", "DEEPSPEED_ARGS": f"--master_port={free_port()}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert results_of(tmp_path / "run")["scores"]["accuracy"]["mean"] >= 95.0
    lines = (tmp_path / "run" / "seed-0" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(40))
    checkpoints = (tmp_path / "run" / "seed-0" / "checkpoints").glob("step-*/*_optim_states.pt")
    assert len(list(checkpoints)) >= 2
