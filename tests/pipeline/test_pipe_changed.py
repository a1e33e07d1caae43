"""A run that goes on with other settings says each; what it may not change it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from episodes import play

from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.preflight import check_run
from pipeline.state import changed_settings, check_same_run, first_state


@pytest.fixture
def resolved(toy_config):
    """resolved(*overrides): the toy run's configuration, with its model resolved."""
    return lambda *overrides: check_run(load_config(toy_config, overrides), 1).config


def test_each_changed_setting_is_named_with_both_values(resolved):
    saved = first_state(resolved(), "f", 1)
    assert changed_settings(saved, resolved(), 1) == []
    now = resolved(
        "optim.learning_rate=0.02",
        "optim.betas=[0.9, 0.95]",
        "engine.checkpointing=[composition]",
        "checkpoint.every_steps=null",
        "monitor.wandb=null",
        "checkpoint.resume=never",
        "engine.deepspeed={wall_clock_breakdown: true}",
    )
    assert changed_settings(saved, now, 2) == [
        "optim.learning_rate 0.01 -> 0.02",
        "optim.betas [0.9, 0.999] -> [0.9, 0.95]",
        'engine.checkpointing [] -> ["composition"]',
        "checkpoint.every_steps 2 -> null",
        "number of ranks 1 -> 2",
        "engine.deepspeed.wall_clock_breakdown null -> true",
    ]


def test_fewer_steps_than_were_taken_are_refused(resolved):
    saved = replace(first_state(resolved(), "f", 1), step=6)
    check_same_run(saved, resolved("train.num_steps=6"), "f", Path("c"))
    with pytest.raises(
        ConfigError, match=r"^train\.num_steps: 5 here, but checkpoint c has taken 6"
    ):
        check_same_run(saved, resolved("train.num_steps=5"), "f", Path("c"))


@pytest.mark.dist
def test_a_resumed_run_says_what_has_changed(toy_config, tmp_path):
    starts = [
        ["train.num_steps=4"],
        ["train.num_steps=3"],
        ["train.num_steps=4", "train.stop_at_step=2"],
        ["train.num_steps=5", "train.stop_at_step=2"],
        ["train.num_steps=5", "optim.learning_rate=0.005"],
    ]
    seen = play(tmp_path, toy_config, [{"overrides": overrides} for overrides in starts])
    codes, outs, errs = ([one[key][0] for one in seen] for key in ("codes", "out", "err"))
    assert codes == [0, 2, 0, 0, 0], errs
    assert outs[0].splitlines()[0] == "done: 4 steps"
    assert "changed since" not in errs[0]
    assert (outs[1], errs[1].count("\n")) == ("", 1)
    assert "train.num_steps: 3 here, but checkpoint" in errs[1]
    assert outs[2].splitlines()[0] == "done: 4 steps"
    nothing = "nothing to do: step 4 of 5 is taken, and train.stop_at_step 2 is no"
    assert outs[3].startswith(nothing)
    assert outs[4].splitlines()[0] == "done: 5 steps"
    [line] = [line for line in errs[4].splitlines() if "changed since" in line]
    assert line.endswith(
        "step-000000004: train.num_steps 4 -> 5; optim.learning_rate 0.01 -> 0.005"
    )
