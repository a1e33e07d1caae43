"""What benchmarks/gpu_check.sh refuses, and what its rehearsal runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "benchmarks" / "gpu_check.sh"
STUB = """#!/bin/sh
echo "interpret=${TRITON_INTERPRET-none}" $* >> "$STUB_LOG" # one line
exit "${STUB_CODE:-0}"
"""


def gpu_check(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True, text=True, env=os.environ | environ,
    )  # fmt: skip


@pytest.fixture
def stub(tmp_path: Path) -> dict[str, str]:
    """An interpreter that notes what it is asked to do, and does nothing."""
    python = tmp_path / "python"
    python.write_text(STUB)
    python.chmod(0o755)
    return {"PYTHON": str(python), "STUB_LOG": str(tmp_path / "log")}


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_the_usage(option: str, tmp_path: Path) -> None:
    done = gpu_check(option, str(tmp_path / "results"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: bash benchmarks/gpu_check.sh")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--reherse"], "--reherse"), (["-x"], "-x"), (["{}/a", "{}/b"], "/b"), ([""], "''")],
)
def test_wrong_usage_is_one_line(arguments: list[str], named: str, tmp_path: Path) -> None:
    done = gpu_check(*(argument.format(tmp_path) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_one_line_and_no_folder(tmp_path: Path) -> None:
    done = gpu_check(str(tmp_path / "results"), PYTHON=sys.executable)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_check: PyTorch sees no CUDA device; --rehearse needs none\n"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_cure(tmp_path: Path, stub: dict[str, str]) -> None:
    done = gpu_check("--rehearse", str(tmp_path / "results"), **stub, STUB_CODE="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no package torch" in done.stderr
    assert "PYTHON=.venv/bin/python" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_the_rehearsal_compiles_for_a_gpu(tmp_path: Path, stub: dict[str, str]) -> None:
    done = gpu_check(str(tmp_path / "results"), "--rehearse", **stub)
    assert done.returncode == 0, done.stderr
    calls = Path(stub["STUB_LOG"]).read_text().splitlines()
    [compiling] = [call for call in calls if "benchmarks/forecast/no_gpu.py" in call]
    assert compiling.startswith("interpret=none ")
    assert all(call.startswith("interpret=1 ") for call in calls if call != compiling)


@pytest.mark.slow
def test_the_rehearsal_passes(tmp_path: Path) -> None:
    done = gpu_check("--rehearse", str(tmp_path / "results"), PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    compiled = (tmp_path / "results" / "compile.txt").read_text().splitlines()
    assert json.loads(compiled[-1])["forms"] >= 10
