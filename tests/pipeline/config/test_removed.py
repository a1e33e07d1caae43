"""Settings that were removed: refused when a user turns them on, left out of stored configs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pipeline.checkpoint.files import MANIFEST, SAVING, STATE, list_checkpoints, publish, verify
from pipeline.checkpoint.trainer_state import changed_settings, first_state
from pipeline.config.removed import removed_settings, without_removed
from pipeline.config.run import config_to_dict, load_config
from pipeline.errors import ConfigError
from pipeline.evaluate.results import RESULTS
from pipeline.finetune.config import (
    FinetuneConfig,
    FinetuneTrainConfig,
    load_finetune_config,
)
from pipeline.finetune.glue.config import GlueConfig
from pipeline.finetune.run import _done, _options
from pipeline.train.preflight import check_run

PRETRAIN = Path(__file__).parents[3] / "launch" / "pretrain.sh"
REFUSED = r"^unknown field engine\.plan_ahead; it was removed \(planning .*\): leave it out$"


def with_setting(plain: dict, value: str) -> dict:
    return {**plain, "engine": {**plain.get("engine", {}), "plan_ahead": value}}


def test_a_user_who_turns_one_on_is_told_that_it_was_removed(toy_config):
    with pytest.raises(ConfigError, match=REFUSED):
        load_config(toy_config, ["engine.plan_ahead=steps"])
    setting_on = with_setting(yaml.safe_load(toy_config.read_text()), "steps")
    toy_config.write_text(yaml.safe_dump(setting_on))
    with pytest.raises(ConfigError, match=REFUSED):
        load_config(toy_config)
    with pytest.raises(ConfigError, match=r"^engine: 3 is not allowed"):
        load_config(toy_config, ["engine=3"])


def test_the_config_file_that_an_old_run_wrote_loads(toy_config):
    config = load_config(toy_config)
    written = with_setting(config_to_dict(config), "none")
    toy_config.write_text(yaml.safe_dump(written))
    assert load_config(toy_config) == config
    assert load_config(toy_config, ["engine.plan_ahead=none"]) == config


def test_fine_tuning_tells_it_too(tmp_path):
    file = tmp_path / "finetune.yaml"
    file.write_text("engine: {plan_ahead: steps}\n")
    with pytest.raises(ConfigError, match=REFUSED):
        load_finetune_config(file)


@pytest.mark.parametrize("value", ["none", "micro_steps", "steps"])
def test_a_stored_configuration_is_read_without_it(toy_config, value):
    config = check_run(load_config(toy_config), 1).config
    now = config_to_dict(config)
    old = with_setting(now, value)
    assert without_removed(old) == now
    assert old["engine"]["plan_ahead"] == value  # what was given is as it was
    saved = first_state(config, "f", 1)
    saved.config["engine"]["plan_ahead"] = value
    assert changed_settings(saved, config, 1) == []
    said = removed_settings(old)
    assert len(said) == (value != "none")
    assert all(f"the run had it at {value}, and goes on without it" in line for line in said)


@pytest.mark.dist
@pytest.mark.parametrize("value", ["none", "steps"])
def test_a_checkpoint_of_a_run_that_had_it_goes_on(start_ranks, toy_config, tmp_path, value):
    def pretrain(stop: int) -> str:
        stopped = f"train.stop_at_step={stop}"
        code, out, err = start_ranks(1, PRETRAIN, "--config", toy_config, stopped).finish()[0]
        assert code == 0, out + err
        return err

    pretrain(1)
    folder = tmp_path / "run" / "checkpoints"
    make_old(list_checkpoints(folder)[-1], value)
    err = pretrain(2)
    assert err.count("engine.plan_ahead was removed") == (value != "none")
    assert err.count("plan_ahead") == (value != "none")
    last = list_checkpoints(folder)[-1]
    assert last.name[-1] == "2"
    assert "plan_ahead" not in (last / STATE).read_text()
    assert not list(last.glob("first_order*"))


def make_old(checkpoint: Path, value: str) -> None:
    """What a program that had `engine.plan_ahead` would have written."""
    state = verify(checkpoint)
    staged = checkpoint.rename(checkpoint.with_name(f"{SAVING}{checkpoint.name}"))
    (staged / MANIFEST).unlink()
    if value == "steps":
        (staged / "first_order_rank_0.npz").write_bytes(b"scores of a next micro-batch")
    publish(staged, checkpoint, replace(state, config=with_setting(state.config, value)))


@pytest.mark.parametrize("value", ["none", "steps"])
def test_a_fine_tuned_seed_that_had_it_is_not_done_again(tmp_path, value):
    train, glue = FinetuneTrainConfig(1, 8), GlueConfig(task="rte", path="d")
    config = FinetuneConfig(str(tmp_path), train, init="m", glue=glue)
    plan: Any = SimpleNamespace(config=config)
    config.seed_folder(3).mkdir()
    file = config.seed_folder(3) / RESULTS
    file.write_text(json.dumps({"options": with_setting(_options(config), value)}))
    assert _done(plan, 3)
    older = with_setting(_options(config), value)
    del older["structure"]["chart_order"]  # a setting that came later
    file.write_text(json.dumps({"options": older}))
    assert _done(plan, 3)
    other = with_setting({**_options(config), "init": "another"}, value)
    file.write_text(json.dumps({"options": other}))
    assert not _done(plan, 3)
