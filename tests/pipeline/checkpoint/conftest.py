"""A run's folder, its checkpoints, and the state that they hold."""

from __future__ import annotations

import pytest

from pipeline.checkpoint.trainer_state import first_state
from pipeline.config.run import load_config


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def state(toy_config):
    return first_state(load_config(toy_config), "f" * 64, 2)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"
