"""Which rank a process is, by each launcher's variables; signals as wishes to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pipeline.distributed.placement import Placement, find_placement, first_host
from pipeline.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def place(placement: Placement) -> tuple[int, int, int, int, str, int]:
    p = placement
    return (p.rank, p.size, p.local_rank, p.local_size, p.address, p.port)


SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[07-09,12]",
    "SLURM_JOB_ID": "20003",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0, 1, "127.0.0.1", 29500)),
        (
            # The DeepSpeed launcher on the second of two machines.
            {
                "RANK": "3",
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "1",
                "LOCAL_SIZE": "2",
                "MASTER_ADDR": "10.0.0.1",
                "MASTER_PORT": "1234",
            },
            (3, 4, 1, 2, "10.0.0.1", 1234),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            (1, 2, 1, 2, "127.0.0.1", 29500),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "MASTER_PORT": "7",
            },
            (1, 2, 1, 2, "127.0.0.1", 7),
        ),
        (
            {
                "PMI_RANK": "2",
                "PMI_SIZE": "4",
                "MPI_LOCALRANKID": "0",
                "MPI_LOCALNRANKS": "2",
                "MASTER_ADDR": "head",
                **SLURM,  # mpirun within a Slurm job: MPI knows better
            },
            (2, 4, 0, 2, "head", 29500),
        ),
        (SLURM, (5, 7, 1, 2, "gpu07", 20003)),
        # A batch script itself is not a rank, whatever SLURM_PROCID says.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1, 0, 1, "127.0.0.1", 29500)),
    ],
    ids=["none", "deepspeed", "torchrun", "openmpi", "pmi", "slurm", "slurm-batch"],
)
def test_placement_of_each_launcher(environ, expected):
    assert place(find_placement(environ)) == expected


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"RANK": "0"}, ["WORLD_SIZE"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["LOCAL_RANK"]),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ["rank 2 of 2"]),
        ({"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ["RANK", "'x'"]),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            ["MASTER_ADDR"],
        ),
    ],
)
def test_incomplete_variables_are_named(environ, names, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError) as caught:
        find_placement(environ)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("gpu[03-07,12],login1", "gpu03"), ("a[1,3]-ib", "a1-ib"), ("", "127.0.0.1")],
)
def test_first_host_of_a_slurm_list(nodes, first):
    assert first_host(nodes) == first


WAITING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pipeline.distributed.signals import StopRequest
with StopRequest() as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    print(stop.reason, stop.exit_code, flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize(
    ("number", "told", "code"),
    [
        (signal.SIGTERM, "SIGTERM 0", 128 + signal.SIGTERM),
        (signal.SIGUSR1, "SIGUSR1 0", 128 + signal.SIGUSR1),
        (signal.SIGINT, "SIGINT 130", 130),
    ],
)
def test_first_signal_is_a_wish_and_a_later_one_an_end(number, told, code):
    command = [sys.executable, "-c", WAITING, str(ROOT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.readline().decode().strip() == told
        os.kill(process.pid, number)  # a launcher that passes the same signal on: still one wish
        time.sleep(1.2)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=5) == code
        assert b"second signal" in process.stderr.read()


def test_mpi4py_tells_the_address_of_rank_0(monkeypatch):
    told = []

    class World:
        def Get_size(self):  # noqa: N802 (as in MPI)
            return 4

        def bcast(self, value, root):
            told.append((value, root))
            return value or "10.9.8.7"

    fake = ModuleType("mpi4py")
    fake.MPI = SimpleNamespace(COMM_WORLD=World())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mpi4py", fake)
    values = {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}
    environ = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}
    assert find_placement(environ).address == "10.9.8.7"
    assert told == [(None, 0)]
    # What the user says goes first, and one machine needs nobody to tell.
    assert find_placement(environ | {"MASTER_ADDR": "10.0.0.1"}).address == "10.0.0.1"
    alone = environ | {"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert find_placement(alone).address == "127.0.0.1"
    assert len(told) == 1
