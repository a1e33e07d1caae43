"""A run that is stopped, killed and damaged ends as one that is left alone, bit for bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
import yaml

from pipeline.checkpoint.files import list_checkpoints
from pipeline.checkpoint.manager import load_model_weights
from pipeline.monitor.metrics_file import read_metrics

PRETRAIN = Path(__file__).parents[3] / "launch" / "pretrain.sh"
NUM_STEPS = 12
pytestmark = pytest.mark.dist


@pytest.fixture
def run(tmp_path, toy_run, start_ranks):
    """run(name) starts two ranks on the run `name`; dropout and noise are on."""

    def start(name: str, *overrides: str):
        config = toy_run(tmp_path / name)
        config["train"]["num_steps"] = NUM_STEPS
        config["evaluate"] = {"every_steps": 4, "max_contexts": 3}
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        return start_ranks(2, PRETRAIN, "--config", file, *overrides)

    return start


def steps_of(run_dir: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run_dir / "metrics.jsonl")]


def reached(run_dir: Path, step: int):
    return lambda: max(steps_of(run_dir), default=0) >= step


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def moments(run_dir: Path) -> list[dict]:
    checkpoint = list_checkpoints(run_dir / "checkpoints")[-1]
    files = sorted(checkpoint.glob("*_optim_states.pt"))
    assert len(files) == 2
    return [
        torch.load(file, weights_only=False)["optimizer_state_dict"]["base_optimizer_state"]
        for file in files
    ]


def flat_tensors(tree) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = [tree[key] for key in sorted(tree, key=str)]
    return [t for item in tree for t in flat_tensors(item)] if isinstance(tree, list) else []


def test_stopped_killed_and_damaged_run_ends_bit_identical(run, tmp_path):
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    undisturbed = run("whole").finish()
    assert [code for code, _, _ in undisturbed] == [0, 0], undisturbed
    last_lines = undisturbed[0][1].splitlines()
    assert last_lines[0] == f"done: {NUM_STEPS} steps"
    assert all(str(whole / part) in last_lines[1] for part in ("checkpoints", "metrics.jsonl"))

    # 1. SIGTERM to one rank only: all save within a step and end well.
    ranks = run("torn")
    ranks.wait_for(reached(torn, 2))
    ranks.signal(signal.SIGTERM, 1)
    stopped = ranks.finish()
    assert [code for code, _, _ in stopped] == [0, 0], stopped
    assert stopped[0][1].startswith("stopped by SIGTERM at step ")
    saved = list_checkpoints(torn / "checkpoints")[-1]
    assert str(saved) in stopped[0][1]
    assert steps_of(torn)[-1] == int(saved.name[-9:]) < NUM_STEPS - 5

    # 2. SIGKILL to all ranks, in the middle of something.
    ranks = run("torn")
    two_more = reached(torn, steps_of(torn)[-1] + 2)
    ranks.wait_for(lambda: two_more() and len(list_checkpoints(torn / "checkpoints")) >= 2)
    ranks.signal(signal.SIGKILL)
    assert [code for code, _, _ in ranks.finish()] == [-9, -9]

    # 3. The newest checkpoint is damaged: it is refused by name, and the one before is used.
    older, newest = list_checkpoints(torn / "checkpoints")[-2:]
    flip_a_byte(next(newest.glob("*rank_1*_optim_states.pt")))
    (code_0, _, err_0), (code_1, _, err_1) = run("torn").finish()
    assert (code_0, code_1) == (0, 0), err_0 + err_1
    assert f"refused: checkpoint {newest}: zero_pp_rank_1" in err_0
    assert f"resumed from {older}" in err_0
    assert (newest.parent / f"refused-{newest.name}").exists()

    # The end is the same: weights, moments, and every number of every step, each once.
    expected, found = load_model_weights(whole)[1], load_model_weights(torn)[1]
    assert all(torch.equal(expected[name], value) for name, value in found.items())
    pairs = zip(flat_tensors(moments(whole)), flat_tensors(moments(torn)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    changing = ("time_s", "tokens_per_second", "tflops", "mfu", "memory_gib")
    lines = [
        [
            {k: v for k, v in line.items() if k not in changing}
            for line in read_metrics(run_dir / "metrics.jsonl")
        ]
        for run_dir in (whole, torn)
    ]
    assert lines[0] == lines[1]
    assert sorted({line["step"] for line in lines[0]}) == list(range(1, NUM_STEPS + 1))
    latest = (torn / "checkpoints" / "latest").read_text().strip()
    state = json.loads((torn / "checkpoints" / latest / "state.json").read_text())
    assert state["step"] == NUM_STEPS
    assert state["samples"] == NUM_STEPS * 8
    assert state["tokens"] == lines[0][-1]["tokens"]
