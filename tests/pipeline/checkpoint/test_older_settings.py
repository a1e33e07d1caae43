"""A run of a program that had fewer settings goes on: what is missing is its default."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.format.shard import open_dataset
from pipeline.checkpoint.trainer_state import changed_settings, check_same_run, first_state
from pipeline.config.batch_shape import resolve_model
from pipeline.config.run import config_to_dict, load_config, stored_run
from pipeline.errors import ConfigError

LATER = {"model": ["last_word"], "structure": ["chart_order", "punctuation_data"]}


@pytest.fixture
def resolved(toy_config, toy_dataset):
    manifest = open_dataset(toy_dataset).manifest
    return lambda *overrides: resolve_model(load_config(toy_config, overrides), manifest)


@pytest.fixture
def saved(resolved):
    """The state of a run of before these settings."""
    state = first_state(resolved(), "f", 1)
    for section, names in LATER.items():
        for name in names:
            del state.config[section][name]
    return state


def test_it_goes_on_and_nothing_has_changed(resolved, saved):
    check_same_run(saved, resolved(), "f", Path("c"))
    assert changed_settings(saved, resolved(), 1) == []
    assert stored_run(saved.config) == config_to_dict(resolved())


def test_what_differs_from_the_default_is_said_or_refused(resolved, saved):
    now = resolved("structure.chart_order=punctuation")
    assert changed_settings(saved, now, 1) == ["structure.chart_order 'parser' -> 'punctuation'"]
    message = r"model\.last_word: True here, but False in checkpoint c"
    with pytest.raises(ConfigError, match=message):
        check_same_run(saved, resolved("model.last_word=true"), "f", Path("c"))


def test_what_a_rule_no_longer_allows_is_left_as_it_is(saved):
    saved.config["structure"]["noise_start"] = -1.0
    assert stored_run(saved.config) == saved.config
