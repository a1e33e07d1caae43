"""Ranks on two machines find each other, or say why not: Slurm, mpirun, torchrun."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import RANKS
from machines import wait_for

pytestmark = pytest.mark.cluster
SRUN = ("srun", "-N2", "-n2", "--kill-on-bad-exit=1")
MPIRUN = (str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root", "-n", "2")
PYTHON = (sys.executable, "-u", RANKS)


@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_srun_with_each_kind_of_mpi(cluster, told, mpi):
    """The nodes' own names are 127.0.1.1 at home; pmi2 is this cluster's MpiDefault."""
    done = cluster.run("node1", *SRUN, f"--mpi={mpi}", *PYTHON, told.folder)
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node2"]
    assert [told.rank(number)["ranks"] for number in (0, 1)] == [2, 2]
    assert [told.rank(number)["GLOO_SOCKET_IFNAME"] for number in (0, 1)] == ["eth0", "eth0"]


def test_mpirun_where_own_names_are_loopback(cluster, told):
    done = cluster.run(
        "node1", *MPIRUN, "--host", "node1,node2", "-x", "PATH", *PYTHON, told.folder
    )
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node2"]


def test_mpirun_without_any_names(cluster, told):
    addresses = ",".join(map(cluster.address, cluster.names))
    with cluster.without_names():
        done = cluster.run("node1", *MPIRUN, "--host", addresses, *PYTHON, told.folder)
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node2"]


def test_slurm_without_any_names_says_so_and_gives_up(cluster, told):
    with cluster.without_names():
        done = cluster.run("node1", *SRUN, *PYTHON, told.folder, DEEPSPEED_TIMEOUT="1")
    assert done.returncode == 2, done.stdout
    assert "ranks (rank 1): waiting for rank 0 at node1:" in done.stdout
    assert "(since 30 s; node2 does not know the name node1: set MASTER_ADDR" in done.stdout
    assert "ranks: waiting for 2 ranks at node1:" in done.stdout
    assert "not here: rank 1, not started, or unable to reach this address" in done.stdout


def test_an_address_that_is_each_machine_itself_is_named(cluster, told):
    local = {"MASTER_ADDR": "127.0.0.1", "DEEPSPEED_TIMEOUT": "1"}
    done = cluster.run("node1", *SRUN, *PYTHON, told.folder, **local)
    assert done.returncode == 2, done.stdout
    assert "waiting for rank 0 at 127.0.0.1:" in done.stdout
    assert "is on another machine: then set MASTER_ADDR to an address of rank 0's" in done.stdout


TORCHRUN = (
    *("torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29711"),
    *("--max-restarts=1", "--monitor-interval=1"),
)


@pytest.mark.parametrize("nodes", [["node1"], ["node1", "node2"]], ids=["one", "two"])
def test_torchrun_starts_killed_ranks_again(cluster, told, nodes):
    """Its agent keeps the store of the first start, and each agent counts its own restarts."""
    options = [f"--nnodes={len(nodes)}", f"--nproc-per-node={2 // len(nodes)}"]
    agents = [cluster.start(node, *TORCHRUN, *options, RANKS, told.folder, "100") for node in nodes]
    told.wait_for_steps()
    victim = told.rank(1)
    for path in told.folder.glob("rank-*"):
        path.unlink()
    assert cluster.run(victim["host"], "kill", "-KILL", victim["process"]).returncode == 0
    outputs = [agent.communicate(timeout=300)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * len(nodes), outputs
    assert told.hosts == (nodes * 2)[:2]
    assert "done" in "".join(outputs)


def test_a_stopped_rank_is_named_and_ends_all(cluster, told):
    """SIGSTOP, as a process that hangs in the kernel; no collective has so short a limit."""
    step = cluster.start("node1", *SRUN, *PYTHON, told.folder, "100000")
    told.wait_for_steps()
    cluster.run("node2", "kill", "-STOP", told.rank(1)["process"])
    began = time.monotonic()
    out, _ = step.communicate(timeout=200)
    assert time.monotonic() - began < 120  # Slurm gives the stopped rank its 30 s
    assert step.returncode != 0
    assert "ranks: no sign of life from rank 1 on node2 for 40 s" in out
    assert told.saved is None


def test_an_unplugged_machine_is_named_on_both_sides(cluster, told):
    logs = ("-o", str(told.folder / "out-%t"))
    step = cluster.start("node1", *SRUN, *logs, *PYTHON, told.folder, "100000")
    told.wait_for_steps()
    numbers = [told.rank(rank)["process"] for rank in (0, 1)]
    with cluster.unplugged("node2"):
        for name, number in zip(cluster.names, numbers, strict=True):
            wait_for(lambda n=name, k=number: cluster.run(n, "kill", "-0", k).returncode, 100)
    out, _ = step.communicate(timeout=120)
    assert step.returncode != 0, out
    said = (told.folder / "out-0").read_text()
    assert "no sign of life from rank 1 on node2 for 40 s" in said
    assert told.saved is None


def test_a_machine_without_power_ends_the_others(cluster, told):
    step = cluster.start("node1", *SRUN, *PYTHON, told.folder, "100000")
    told.wait_for_steps()
    cluster.kill("node2")
    try:
        out, _ = step.communicate(timeout=120)
    finally:
        cluster.boot("node2")
    assert step.returncode != 0, out


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_while_rank_0_checks_ends_all_ranks(cluster, told, number):
    step = cluster.start("node1", *SRUN, *PYTHON, told.folder, "3", "1000")
    while not (told.folder / "checking").exists():
        time.sleep(0.2)
    cluster.run("node1", "bash", "-c", f"scancel -s {number.name[3:]} $(squeue -h -o %i)")
    out, _ = step.communicate(timeout=120)
    name = number.name
    assert f"ranks: stopped by {name} before the first step; nothing was changed" in out
    assert step.returncode == (0 if number == signal.SIGUSR1 else 143), out
    assert os.listdir(told.folder) == ["checking"]
