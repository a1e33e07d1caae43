"""Threads of the commands on a CPU: one where the model is narrow, and none that spins for long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpst.cli import commands, threads

ROOT = Path(__file__).parents[3]
CHOICES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
LOADS = """
import os, sys
from gpst.cli.process import load_torch
assert "torch" not in sys.modules
load_torch("test")
print("torch" in sys.modules, os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.fixture
def two_threads(monkeypatch):
    before = torch.get_num_threads()
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("chosen", "spins"),
    [({}, "1000"), ({"OMP_NUM_THREADS": "2"}, None), ({"OMP_WAIT_POLICY": "active"}, None),
     ({"GOMP_SPINCOUNT": "7"}, "7")],
)  # fmt: skip
def test_threads_wait_briefly_unless_the_user_has_chosen(chosen, spins):
    environ = {name: value for name, value in os.environ.items() if name not in CHOICES} | chosen
    command = [sys.executable, "-c", LOADS]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.stdout == f"True {spins}\n", done.stderr


@pytest.mark.parametrize(
    ("width", "device", "number"), [(511, "cpu", 1), (512, "cpu", 2), (64, "cuda", 2)]
)
def test_a_narrow_model_has_one_thread(two_threads, width, device, number):
    threads.use_threads(width, torch.device(device))
    assert torch.get_num_threads() == number


def test_the_number_that_the_user_has_chosen_stays(two_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads.use_threads(64, torch.device("cpu"))
    assert torch.get_num_threads() == 2


def test_a_command_takes_the_threads_of_its_model(two_threads, make_export, tmp_path, capsys):
    make_export(tmp_path / "model")
    (tmp_path / "text").write_text("the man sat\n")
    command = ["parse", "--model", str(tmp_path / "model"), str(tmp_path / "text")]
    assert commands.main(command) == 0
    assert "sat" in capsys.readouterr().out
    assert torch.get_num_threads() == 1
