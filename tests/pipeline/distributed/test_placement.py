"""Which rank a process is, by each launcher's variables; signals as wishes to stop."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pipeline.distributed import addresses, placement
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
        (SLURM, (5, 7, 1, 2, "gpu07", 28003)),
        # A second step of the same job has a port of its own.
        (SLURM | {"SLURM_STEP_ID": "1"}, (5, 7, 1, 2, "gpu07", 31992)),
        # srun --mpi=pmi2 sets PMI without a local rank.
        (SLURM | {"PMI_RANK": "5", "PMI_SIZE": "7"}, (5, 7, 1, 2, "gpu07", 28003)),
        (
            # Cray's PALS.
            {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}
            | {"MASTER_ADDR": "head"},
            (3, 4, 1, 2, "head", 29500),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, (0, 1, 0, 1, "127.0.0.1", 29500)),
        # A batch script itself is not a rank, whatever SLURM_PROCID says.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1, 0, 1, "127.0.0.1", 29500)),
    ],
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
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ["PMI_RANK=0", "MPI_LOCALRANKID", "srun"]),
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


@pytest.fixture
def mpi(monkeypatch):
    """mpi(names, address) -> the environment of one of four ranks; an MPI with those answers.

    names: what each rank resolves the name of rank 0's machine to.
    """

    def make(names: list[str | None], outgoing: str | None) -> dict[str, str]:
        answers = iter([[("node1", outgoing)] * 4, names])
        world = SimpleNamespace(Get_size=lambda: 4, allgather=lambda own: next(answers))
        fake = ModuleType("mpi4py")
        fake.MPI = SimpleNamespace(COMM_WORLD=world, Finalize=lambda: None)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mpi4py", fake)
        values = {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}
        return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}

    return make


def test_mpi4py_tells_the_address_of_rank_0(mpi):
    # Rank 0's machine itself has 127.0.1.1 for its name, which `resolve` leaves out.
    assert find_placement(mpi([None, None, "10.0.0.1", "10.0.0.1"], None)).address == "10.0.0.1"
    # A name that nobody knows.
    assert find_placement(mpi([None] * 4, "10.9.8.7")).address == "10.9.8.7"
    with pytest.raises(ConfigError, match="MASTER_ADDR is not set"):
        find_placement(mpi([None] * 4, None))
    # What the user says goes first, and one machine needs nobody to tell.
    environ = mpi([], None)
    assert find_placement(environ | {"MASTER_ADDR": "10.0.0.1"}).address == "10.0.0.1"
    alone = environ | {"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert find_placement(alone).address == "127.0.0.1"


def test_an_mpi_that_waits_for_ever_is_named_and_ends(mpi, monkeypatch, capsys):
    """Open MPI does where docker0 has the same address on all machines."""
    ended: list[int] = []
    over = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: (ended.append(code), over.set()))
    monkeypatch.setattr(placement, "_SLOW_S", 0.05)
    monkeypatch.setattr(placement.environment, "timeout_minutes", lambda _: 0.1 / 60)
    environ = mpi([None] * 4, "10.9.8.7")
    world = sys.modules["mpi4py"].MPI.COMM_WORLD
    answer = world.allgather
    world.allgather = lambda own: over.wait(60) and answer(own)
    find_placement(environ | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert ended == [2]
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("rank 3 of 4: waiting for MPI (since 0 s; MPI connects the machines")
    assert err[1].startswith("rank 3 of 4 waited 0.00167 min for MPI: MPI connects the machines")
    assert "mpirun --mca btl_tcp_if_include eth0" in err[1]


def test_loopback_is_never_what_others_are_told(monkeypatch):
    def known(name, *_, **__):
        if name == "debian":
            return [(0, 0, 0, "", ("127.0.1.1", 0))]
        if name == "both":
            return [(0, 0, 0, "", ("::1", 0, 0, 0)), (0, 0, 0, "", ("10.0.0.3", 0))]
        raise OSError("unknown")

    monkeypatch.setattr("socket.getaddrinfo", known)
    names = ("debian", "both", "nobody")
    assert [addresses.resolve(name) for name in names] == [None, "10.0.0.3", None]
    assert addresses.interface_of("127.0.1.1") == addresses.interface_of("127.0.0.1")
    assert addresses.interface_of("203.0.113.9") is None
