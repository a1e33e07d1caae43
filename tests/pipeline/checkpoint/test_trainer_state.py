"""What a checkpoint has of a run besides weights, and which run may resume."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pipeline.checkpoint.trainer_state import (
    TrainerState,
    check_same_run,
    first_state,
    git_revision,
    resumed_state,
)
from pipeline.config.run import load_config
from pipeline.errors import ConfigError


@pytest.fixture
def state(toy_config):
    return first_state(load_config(toy_config), "f" * 64, 2)


def at(state: TrainerState, step: int) -> TrainerState:
    return replace(state, step=step, samples=8 * step, tokens=100 * step)


def test_state_is_read_back(state, tmp_path):
    plain = json.loads(json.dumps(at(state, 3).to_dict()))
    assert TrainerState.from_dict(plain, tmp_path) == at(state, 3)


def test_resumed_state_has_the_counters_of_then_and_the_rest_of_now(state):
    saved = replace(at(state, 5), skipped_steps=2, world_size=9)
    assert resumed_state(saved, state) == replace(at(state, 5), skipped_steps=2)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.composition.dim=32", ["model.composition.dim", "32", "16"]),
        ("seed=5", ["seed", "5", "0"]),
        ("train.global_batch_contexts=16", ["train.global_batch_contexts", "16", "8"]),
        ("data.context_tokens=16", ["data.context_tokens"]),
    ],
)
def test_another_run_is_not_resumed(toy_config, state, tmp_path, override, words):
    with pytest.raises(ConfigError) as caught:
        check_same_run(state, load_config(toy_config, [override]), "f" * 64, tmp_path)
    assert all(word in str(caught.value) for word in words)


def test_other_lengths_and_rates_may_follow(toy_config, state, tmp_path):
    changed = ["train.num_steps=99", "optim.learning_rate=1", "train.stop_at_step=3"]
    check_same_run(state, load_config(toy_config, changed), "f" * 64, tmp_path)
    with pytest.raises(ConfigError, match="fingerprint"):
        check_same_run(state, load_config(toy_config, changed), "e" * 64, tmp_path)


def test_git_revision_is_a_commit_or_nothing(tmp_path):
    assert git_revision(tmp_path) == ""
