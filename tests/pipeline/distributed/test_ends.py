"""A run that has finished ends with 0, on a full machine too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("worker_ends.py")


@pytest.mark.slow
@pytest.mark.dist
def test_fifty_ends_of_two_ranks_at_load_8(toy_config, tmp_path, clean_environment):
    """Two ranks and six processes that take the processor."""
    done = subprocess.run(
        [sys.executable, WORKER, toy_config, tmp_path / "run", "50", "6"],
        env=clean_environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[0, 0]] * 50, (tmp_path / "run.log").read_text()[-3000:]
