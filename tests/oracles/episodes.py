"""Starts of the pre-training command whose ranks are forks: the modules are loaded once for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "pipeline" / "train" / "worker_runs.py"


def python(script: list[str], timeout_s: float = 600) -> str:
    """The standard output of Python on `script`, from the project's root; a failure is said."""
    done = subprocess.run(
        [sys.executable, *script],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def play(
    folder: Path, config: Path, episodes: list[dict[str, Any]], ranks: int = 1
) -> list[dict[str, Any]]:
    """What became of each start, one after another; see worker_runs.py for what one can say.

    Args:
        folder: where the list is written.
        ranks: of an episode that does not say.
    """
    script = folder / "episodes.json"
    plain = {"config": str(config), "ranks": ranks, "overrides": []}
    script.write_text(json.dumps([{**plain, **episode} for episode in episodes]))
    return json.loads(python([str(WORKER), str(script)]))
