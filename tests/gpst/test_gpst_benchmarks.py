"""The benchmarks of the model run, on inputs too small to tell anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
TINY = "configs/model/gpst_tiny.yaml"
COMMANDS = {
    "bench_step": f"--config {TINY} --tokens 64 --repeat 1 --vocab-size 64 --no-memory",
    "bench_length": "--tokens 1024 --repeat 1",
    "bench_plan": "--tokens 512 --repeat 1",
}
NAMES = ["bench_step", "bench_plan", pytest.param("bench_length", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_ends_with_a_line_of_json(name: str) -> None:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *COMMANDS[name].split()],
        cwd=HOME, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert json.loads(lines[-1])["benchmark"] == name.removeprefix("bench_")
