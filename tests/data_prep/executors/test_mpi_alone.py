"""Processes that MPI takes for several runs of one: they would write the same files."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from data_prep.errors import UsageError
from data_prep.executors.serial import SerialRunner

NAMES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@pytest.fixture
def mpi(monkeypatch):
    """data_prep.executors.mpi, with an MPI that sees one process."""
    fakes = {"mpi4py": ModuleType("mpi4py"), "mpi4py.futures": ModuleType("mpi4py.futures")}
    fakes["mpi4py"].MPI = SimpleNamespace(  # type: ignore[attr-defined]
        COMM_WORLD=SimpleNamespace(Get_size=lambda: 1),
        Get_library_version=lambda: "Open MPI v5.0.8, package: x",
    )
    fakes["mpi4py.futures"].MPICommExecutor = None  # type: ignore[attr-defined]
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.delitem(sys.modules, "data_prep.executors.mpi", raising=False)
    for name in (*NAMES, "SLURM_PTY_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield importlib.import_module("data_prep.executors.mpi")
    sys.modules.pop("data_prep.executors.mpi", None)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_of_another_launcher_are_refused(mpi, monkeypatch, name):
    monkeypatch.setenv(name, "4")
    with pytest.raises(UsageError) as caught, mpi.mpi_runner():
        pass
    line = str(caught.value)
    assert line.startswith(f"--backend mpi: {name}=4 processes were started, and each sees itself")
    assert "not that of mpi4py's MPI (Open MPI v5.0.8); start" in line


def test_a_process_alone_works_alone(mpi, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    with mpi.mpi_runner() as runner:
        assert isinstance(runner, SerialRunner)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PTY_PORT", "40000")  # somebody types here
    with mpi.mpi_runner() as runner:
        assert isinstance(runner, SerialRunner)
