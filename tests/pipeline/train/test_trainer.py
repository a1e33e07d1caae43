"""What a run does after its steps, seen from outside: files, lines, exit codes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpst.config import config_from_dict
from gpst.model.build import build_model
from pipeline.checkpoint.files import list_checkpoints
from pipeline.checkpoint.manager import load_model_weights
from pipeline.monitor.metrics_file import read_metrics

PRETRAIN = Path(__file__).parents[3] / "launch" / "pretrain.sh"
pytestmark = pytest.mark.dist


@pytest.fixture
def pretrain(tmp_path, toy_config, start_ranks):
    """pretrain(*overrides) -> (exit code, stdout, stderr) of one rank; run_dir is tmp_path/run."""

    def run(*overrides: str) -> tuple[int, str, str]:
        (result,) = start_ranks(1, PRETRAIN, "--config", toy_config, *overrides).finish()
        return result

    return run


def test_a_run_writes_what_is_due(pretrain, tmp_path):
    run_dir = tmp_path / "run"
    code, out, err = pretrain(
        "train.num_steps=5",
        "checkpoint={every_steps: 2, keep_last: 2}",
        "monitor={log_every_steps: 3, sample_every_steps: 4, sentences: [w1 w4 w7 w10]}",
        "evaluate={every_steps: 2, max_contexts: 2}",
        "engine.checkpointing=[composition, generator]",
        "engine.zero_stage=0",
    )
    assert code == 0, err
    assert out.splitlines()[0] == "done: 5 steps"
    assert [path.name[-1] for path in list_checkpoints(run_dir / "checkpoints")] == ["4", "5"]
    lines = read_metrics(run_dir / "metrics.jsonl")
    evaluated = [line["step"] for line in lines if "eval/perplexity/token" in line]
    trained = [line for line in lines if "loss" in line]
    assert evaluated == [2, 4, 5]
    assert [line["step"] for line in trained] == [1, 3, 5]
    for name in ("loss/autoencoding", "loss/token", "loss/type", "loss/parser", "loss/height"):
        assert trained[0][name] >= 0.0
    assert trained[0]["gradient_norm"] > 0
    assert trained[0]["structure/height"] > 0
    assert trained[0]["samples"] == 8
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["model"]["vocab_size"] == 64
    events = EventAccumulator(str(run_dir / "tensorboard" / "steps")).Reload()
    tags = [tag for tag in events.Tags()["tensors"] if tag.startswith("trees/0")]
    (tag,) = tags
    trees = [event.tensor_proto.string_val[0].decode() for event in events.Tensors(tag)]
    assert len(trees) == 2  # after step 4 and at the end
    for tree in trees:
        assert sorted(tree.strip().replace("(", "").replace(")", "").split()) == [
            "w1",
            "w10",
            "w4",
            "w7",
        ]
        assert tree.count("(") == 3


def test_a_run_that_diverges_stops_and_names_its_checkpoint(pretrain, tmp_path):
    code, out, err = pretrain(
        "train.max_nonfinite_steps=2", "optim.learning_rate=1e30", "checkpoint.every_steps=1"
    )
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("pretrain: stopped at step 3: 2 steps in a row were not finite")
    # Steps 2 and 3 were skipped, so the checkpoint of step 2 has the parameters of step 1.
    assert str(tmp_path / "run" / "checkpoints" / "step-000000002") in last
    assert "samples 8..15" in err
    assert "Traceback" not in err
    skipped = [line["skipped_steps"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert skipped == [0, 1]


def test_a_full_disk_is_one_line_and_leaves_nothing(toy_config, tmp_path, clean_environment):
    limit = "ulimit -f 100"  # KiB a file: metrics fit, checkpoints do not
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'{limit}; exec "$@"',
            "-",
            sys.executable,
            PRETRAIN,
            "--config",
            toy_config,
        ],
        env=clean_environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 3, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("step ")]
    assert len(lines) == 1
    assert str(tmp_path / "run" / "checkpoints" / "step-000000002") in lines[0]
    assert "could not be written" in lines[0]
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_shard_that_is_cut_short_while_it_is_read_is_one_line(
    toy_dataset, toy_config, tmp_path, start_ranks
):
    shutil.copytree(toy_dataset, tmp_path / "data")
    shard = tmp_path / "data" / "shard-00000.tokens.npy"
    size = shard.stat().st_size
    overrides = (f"data.path={tmp_path / 'data'}", "train.num_steps=100000")
    ranks = start_ranks(1, PRETRAIN, "--config", toy_config, *overrides)
    deadline = time.monotonic() + 150
    while len(read_metrics(tmp_path / "run" / "metrics.jsonl")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.truncate(shard, 200)
    ((code, _, err),) = ranks.finish()
    assert code == 3, err
    assert f"{shard} was cut short while it was read: it has 200 bytes, not {size}" in err
    assert "Traceback" not in err


def test_gpt2_with_tied_weights_is_saved_and_resumed(pretrain, tmp_path):
    sizes = "hidden_dim: 32, num_heads: 2, ffn_dim: 64, num_layers: 1, max_context_tokens: 32"
    model = f"model={{kind: gpt2, {sizes}}}"
    code, out, err = pretrain(model, "train.stop_at_step=half", "train.num_steps=5")
    assert code == 0, err
    assert out.startswith("stopped at step 2 of 5 (train.stop_at_step)")
    code, out, err = pretrain(model, "train.num_steps=3")
    assert (code, out.splitlines()[0]) == (0, "done: 3 steps"), err
    config, weights = load_model_weights(tmp_path / "run")
    built = build_model(config_from_dict(config["model"]))
    built.load_state_dict(weights, strict=True)
    tied = [weights["gpt2.transformer.wte.weight"], weights["gpt2.lm_head.weight"]]
    assert torch.equal(*tied)
    assert tied[0].data_ptr() == tied[1].data_ptr()
