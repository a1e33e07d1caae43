"""Runs that are killed at random, cut into other numbers of ranks, or find the disk full."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import episodes
import pytest
import torch
import yaml

from pipeline.checkpoint.files import list_checkpoints, verify, whole_checkpoint
from pipeline.checkpoint.manager import load_model_weights
from pipeline.config.run import load_config
from pipeline.engine.saved_state import MOMENTS, SavedState
from pipeline.monitor.metrics_file import read_metrics
from pipeline.train.preflight import check_run

NUM_STEPS = 26
"""More than two turns through the toy dataset."""
pytestmark = pytest.mark.dist


@pytest.fixture
def config(tmp_path, toy_run):
    """config(**train) -> YAML file of a run that saves after every step; noise and dropout on."""

    def write(**train: Any) -> Path:
        run = toy_run(tmp_path / "run")
        run["train"] |= train
        run["checkpoint"] = {"every_steps": 1, "keep_last": 2}
        run["monitor"] |= {"peak_tflops_per_rank": 1.0}  # no time to measure it
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(run))
        return file

    return write


@pytest.fixture
def play(tmp_path):
    """play(file, *episodes) -> what became of each; see worker_runs.py."""

    return lambda file, *told: episodes.play(tmp_path, file, list(told), ranks=2)


def last_state(run_dir: Path) -> dict[tuple[str, str], torch.Tensor]:
    saved = SavedState(list_checkpoints(run_dir / "checkpoints")[-1])
    return {(n, kind): saved.whole(n, kind) for n in saved.shapes for kind in ("fp32", *MOMENTS)}


def check_kills(config, play, tmp_path, kills: int, num_steps: int, overrides: list[str]) -> int:
    """Kills a run `kills` times, compares its end with an undisturbed one; kills while saving."""
    file, chance = config(num_steps=num_steps), random.Random(len(overrides) + kills)
    whole = {"overrides": [f"run_dir={tmp_path / 'whole'}", *overrides]}
    victims = [chance.choice([[0], [1], [0, 1]]) for _ in range(kills)]
    killed = [
        {"overrides": overrides, "kill": ranks, "kill_after_s": chance.uniform(0.0, 0.4)}
        for ranks in victims
    ]
    first, *seen, last = play(file, whole, *killed, {"overrides": overrides})
    assert first["codes"] == last["codes"] == [0, 0], first["err"] + last["err"]
    for ranks, episode in zip(victims, seen, strict=True):
        for rank in (0, 1):
            assert episode["codes"][rank] == (-9 if rank in ranks else 1), episode
        for rank in {0, 1} - set(ranks):
            assert "another rank died" in episode["err"][rank]
        # Nothing half-written ever has a checkpoint's name.
        assert "refused" not in "".join(episode["err"]) + "".join(last["err"])
        assert episode["seconds"] < 120  # the survivor does not wait for its time limit
    for episode in (*seen[1:], last):
        assert "resumed from" in episode["err"][0] or "step 1/" in episode["err"][0]
    expected, found = last_state(tmp_path / "whole"), last_state(tmp_path / "run")
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, num_steps + 1))
    left = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert left == {"latest", *(f"step-{num_steps - n:09}" for n in (1, 0))}
    return sum(episode["saving"] for episode in seen)


def test_killed_runs_end_as_undisturbed_ones(config, play, tmp_path):
    check_kills(config, play, tmp_path, kills=2, num_steps=16, overrides=["engine.zero_stage=2"])


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "kills", "num_steps"), [(1, 20, 260), (3, 6, 80)])
def test_many_kills(config, play, tmp_path, stage, kills, num_steps):
    overrides = [f"engine.zero_stage={stage}"]
    while_saving = check_kills(config, play, tmp_path, kills, num_steps, overrides)
    assert while_saving >= kills // 6


def test_no_sample_is_repeated_or_skipped_across_worlds(config, play, tmp_path):
    """Two ranks killed, one rank stopped, two ranks of another stage: every context once a turn."""
    file, record = config(num_steps=NUM_STEPS), tmp_path / "record"
    record.mkdir()
    starts: list[dict[str, Any]] = [
        {"overrides": ["engine.zero_stage=3"], "dies_in_step": 6},
        {"overrides": ["train.stop_at_step=14"], "ranks": 1},
        {"overrides": ["engine.zero_stage=2"]},
    ]
    for start in starts:
        start["record"] = str(record)
        start["overrides"].append("checkpoint.every_steps=3")
    episodes = play(file, *starts)
    assert [episode["codes"] for episode in episodes] == [[-9, -9], [0], [0, 0]], episodes
    reached = int(episodes[1]["err"][0].partition("(step ")[2].partition(")")[0])
    assert reached == 6
    taken: dict[int, dict[int, list]] = {}
    for name in ("steps-2", "steps-1"):
        for rank in (0, 1):
            path = record / f"{name}-{rank}"
            for line in path.read_text().splitlines() if path.exists() else []:
                found = json.loads(line)
                step = taken.setdefault(found["step"], {})
                key = rank if name == "steps-2" else -1
                # A step that was lost with a kill is taken again: on the same samples.
                assert step.get(key, found["rows"]) == found["rows"]
                step[key] = found["rows"]
    order: list[tuple[int, ...]] = []
    for step in range(NUM_STEPS):
        by_rank = taken[step]
        by_two = [*by_rank[0], *by_rank[1]] if {0, 1} <= by_rank.keys() else None
        by_one = by_rank.get(-1)
        assert by_one is None or reached <= step < 14
        # Lost with the kill and taken again by another number of ranks: the same global batch.
        assert by_one is None or by_two is None or by_one == by_two
        order += [tuple(row) for row in by_one or by_two or ()]
    source = check_run(load_config(file), 1).source
    size = source.num_contexts
    every = Counter(tuple(source.batch([c]).tokens.tolist()) for c in range(size))
    assert len(order) == 8 * NUM_STEPS >= 2 * size
    assert Counter(order[:size]) == Counter(order[size : 2 * size]) == every
    assert whole_checkpoint(tmp_path / "run")[1].samples == len(order)


def test_a_full_disk_of_one_rank_stops_all_or_none(config, play, tmp_path):
    file = config(num_steps=5)
    full = {"full_at_step": 3, "full_rank": 1}
    goes_on = {"overrides": ["checkpoint.on_save_failure=continue", "train.stop_at_step=4"], **full}
    stops, on, freed = play(file, full, goes_on, {})
    checkpoints = tmp_path / "run" / "checkpoints"
    name = checkpoints / "step-000000003"
    assert stops["codes"] == [3, 3]
    (line,) = [t for t in "".join(stops["err"]).splitlines() if t.startswith("pretrain")]
    assert f"checkpoint {name} could not be written by rank 1" in line
    assert "No space left" in line
    # The next start went on from step 2; step 4 is its last: that checkpoint must not be missing.
    assert on["codes"] == [3, 3]
    assert f"resumed from {checkpoints / 'step-000000002'}" in on["err"][0]
    assert f"{name} could not be written by rank 1" in on["err"][0]
    assert "going on (checkpoint.on_save_failure: continue)" in on["err"][0]
    assert "step-000000004 could not be written" in "".join(on["err"])
    assert "Traceback" not in "".join(stops["err"] + on["err"])
    assert freed["codes"] == [0, 0]
    assert [path.name[-1] for path in list_checkpoints(checkpoints)] == ["4", "5"]


@pytest.fixture
def small_disk(tmp_path):
    """small_disk(kib) mounts a file system of that size, or changes its size; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(kib: int, *options: str) -> Path:
        what = ",".join((f"size={kib}k", *options))
        command = ["mount", "-t", "tmpfs", "-o", what, "tmpfs", str(folder)]
        if shutil.which("mount") is None or os.geteuid() != 0:
            pytest.skip("mounting needs root")
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        return folder

    yield mount
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_keeps_what_is_whole(config, play, small_disk):
    file, disk = config(num_steps=12), small_disk(2300)
    run_dir = disk / "run"
    overrides = [f"run_dir={run_dir}", "checkpoint.keep_every_steps=1", "checkpoint.keep_last=1"]
    goes_on = {"overrides": [*overrides, "checkpoint.on_save_failure=continue"], "ranks": 1}
    (full,) = play(file, goes_on)
    assert full["codes"] == [3], full["err"]
    assert "No space left" in full["err"][0] or "could not be written" in full["err"][0]
    assert "Traceback" not in full["err"][0]
    assert "step 12/12" in full["err"][0]  # it trained to the end
    whole = list_checkpoints(run_dir / "checkpoints")
    assert 1 <= len(whole) < 12
    assert all(verify(path).step for path in whole)
    small_disk(16000, "remount")
    (done,) = play(file, goes_on)
    assert done["codes"] == [0], done["err"]
    assert f"resumed from {whole[-1]}" in done["err"][0]
    assert load_model_weights(run_dir)[0]["run_dir"] == str(run_dir)
