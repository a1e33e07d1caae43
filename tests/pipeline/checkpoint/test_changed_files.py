"""A run that goes on with other settings says each; what it may not change it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from episodes import play

from pipeline.checkpoint.files import whole_checkpoint
from pipeline.checkpoint.lines import Line
from pipeline.checkpoint.start_point import StartPoint, forget_other_best
from pipeline.checkpoint.trainer_state import (
    changed_settings,
    check_same_run,
    first_state,
    unused_weights,
)
from pipeline.config.run import load_config
from pipeline.errors import ConfigError
from pipeline.train.preflight import check_run


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


def test_weights_that_are_given_to_a_run_that_goes_on_are_said_to_be_unused(resolved):
    saved = first_state(resolved("checkpoint.init_from=runs/a"), "f", 1)
    for same in ("checkpoint.init_from=runs/a", "checkpoint.init_from=null"):
        assert unused_weights(saved, resolved(same), Path("c")) is None
    line = unused_weights(saved, resolved("checkpoint.init_from=runs/b"), Path("c"))
    assert line is not None
    assert line.startswith("checkpoint.init_from runs/b is not used: the run goes on from c; to")
    assert changed_settings(saved, resolved("checkpoint.init_from=runs/b"), 1) == []


def test_a_best_value_of_another_metric_is_forgotten(resolved):
    """170 of perplexity is better than no f1 is: the best would never change again."""
    measured = ["evaluate.every_steps=2", "checkpoint.best_metric=eval/perplexity/token"]
    config = resolved(*measured)
    best = {"value": 170.0, "step": 2, "by": "lowest eval/perplexity/token"}
    state = replace(first_state(config, "f", 1), step=4, best=best)
    line = Line(None, None, None, 4, True, 2)
    start = StartPoint(Path("c"), state, line=line, messages=("before",))
    assert forget_other_best(start, config.checkpoint) == start
    assert forget_other_best(start, resolved().checkpoint) == start  # nothing is compared
    assert forget_other_best(StartPoint(), config.checkpoint) == StartPoint()
    for other in ("best_is=highest", "best_metric=eval/bits_per_byte"):
        found = forget_other_best(start, resolved(*measured, f"checkpoint.{other}").checkpoint)
        assert found.state == replace(state, best={})
        assert found.line == replace(line, best_step=None)
        assert found.messages[0] == "before"
        assert found.messages[1].startswith(
            "the best checkpoint so far (step-000000002) has the lowest"
        )
    # A checkpoint of before says the metric in its configuration alone.
    old = replace(start, state=replace(state, best={"value": 170.0, "step": 2}))
    assert forget_other_best(old, config.checkpoint) == old
    highest = resolved(*measured, "checkpoint.best_is=highest").checkpoint
    assert forget_other_best(old, highest).state == replace(state, best={})


def test_fewer_steps_than_were_taken_are_refused(resolved):
    saved = replace(first_state(resolved(), "f", 1), step=6)
    check_same_run(saved, resolved("train.num_steps=6"), "f", Path("c"))
    with pytest.raises(
        ConfigError, match=r"^train\.num_steps: 5 here, but checkpoint c has taken 6"
    ):
        check_same_run(saved, resolved("train.num_steps=5"), "f", Path("c"))


@pytest.mark.slow
@pytest.mark.dist
def test_a_resumed_run_says_what_has_changed(toy_config, tmp_path):
    starts = [
        ["train.num_steps=4"],
        ["train.num_steps=4", "train.stop_at_step=2"],
        ["train.num_steps=5", "train.stop_at_step=2"],
        ["train.num_steps=5", "optim.learning_rate=0.005"],
    ]
    seen = play(tmp_path, toy_config, [{"overrides": overrides} for overrides in starts])
    codes, outs, errs = ([one[key][0] for one in seen] for key in ("codes", "out", "err"))
    assert codes == [0, 0, 0, 0], errs
    assert outs[0].splitlines()[0] == "done: 4 steps"
    assert "changed since" not in errs[0]
    assert outs[1].splitlines()[0] == "done: 4 steps"
    nothing = "nothing to do: step 4 of 5 is taken, and train.stop_at_step 2 is no"
    assert outs[2].startswith(nothing)
    assert outs[3].splitlines()[0] == "done: 5 steps"
    [line] = [line for line in errs[3].splitlines() if "changed since" in line]
    assert line.endswith(
        "step-000000004: train.num_steps 4 -> 5; optim.learning_rate 0.01 -> 0.005"
    )


@pytest.mark.dist
def test_a_run_goes_on_with_another_best_metric(start_ranks, toy_config, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    shared = ["evaluate.every_steps=2", "checkpoint.every_steps=null"]
    script = Path(__file__).parents[3] / "launch" / "pretrain.sh"

    def pretrain(*overrides: str) -> str:
        ranks = start_ranks(1, script, "--config", toy_config, *shared, *overrides)
        code, out, err = ranks.finish()[0]
        assert code == 0, out + err
        return err

    pretrain("checkpoint.best_metric=eval/perplexity/token", "train.stop_at_step=2")
    assert whole_checkpoint(folder / "best")[1].step == 2
    metric = ["checkpoint.best_metric=eval/structure/height", "checkpoint.best_is=highest"]
    err = pretrain(*metric, "train.stop_at_step=4")
    assert "wanted is now the highest eval/structure/height: the next evaluation is the best" in err
    # The perplexity of step 2 is higher than any height of a tree.
    checkpoint, state = whole_checkpoint(folder / "best")
    assert state.step == 4
    assert state.best["by"] == "highest eval/structure/height"
    again = pretrain(*metric, "train.stop_at_step=5", "checkpoint.init_from=elsewhere")
    assert "wanted is now" not in again
    assert f"checkpoint.init_from elsewhere is not used: the run goes on from {checkpoint}" in again
