"""A rank that is stopped, unplugged, without power or killed ends the others."""

from __future__ import annotations

import pytest
from conftest import LONG, PYTHON, RANKS, SRUN, TORCHRUN
from machines import wait_for

pytestmark = pytest.mark.cluster


def test_a_stopped_rank_is_named_and_ends_all(cluster, told):
    """SIGSTOP, as a process that hangs in the kernel; no collective has so short a limit."""
    step = cluster.start("node1", *SRUN, *PYTHON, told.folder, LONG)
    told.wait_for_steps()
    cluster.run("node2", "kill", "-STOP", told.rank(1)["process"])
    out = cluster.output(step)
    assert step.returncode != 0
    assert "ranks: no sign of life from rank 1 on node2 for 40 s" in out
    assert told.saved is None


def test_an_unplugged_machine_is_named_on_both_sides(cluster, told):
    logs = ("-o", str(told.folder / "out-%t"))
    step = cluster.start("node1", *SRUN, *logs, *PYTHON, told.folder, LONG)
    told.wait_for_steps()
    numbers = [told.rank(rank)["process"] for rank in (0, 1)]
    with cluster.unplugged("node2"):
        for name, number in zip(cluster.names, numbers, strict=True):
            wait_for(lambda n=name, k=number: cluster.run(n, "kill", "-0", k).returncode, 100)
    out = cluster.output(step)
    assert step.returncode != 0, out
    for here, there in ((0, 1), (1, 0)):
        line = f"no sign of life from rank {there} on node{there + 1} for 40 s"
        assert line in (told.folder / f"out-{here}").read_text()
    assert told.saved is None


def test_the_command_of_an_unplugged_machine_ends_too(cluster, told, hosts):
    """ssh alone would wait for ever."""
    run = cluster.start("node1", "bash", RANKS, "--hosts", hosts, told.folder, LONG)
    told.wait_for_steps()
    with cluster.unplugged("node2"):
        out = cluster.output(run)
    assert run.returncode == 255, out
    assert "node1: ranks: no sign of life from rank 1 on node2 for 40 s" in out


def test_a_machine_without_power_ends_the_others(cluster, told):
    step = cluster.start("node1", *SRUN, *PYTHON, told.folder, LONG)
    told.wait_for_steps()
    cluster.kill("node2")
    try:
        out = cluster.output(step)
    finally:
        cluster.boot("node2")
    assert step.returncode != 0, out


def test_torchrun_starts_a_killed_rank_of_one_machine_again(cluster, told):
    """Its agent keeps the store of the first start. Two machines: test_cluster_runs.py."""
    alone = (*TORCHRUN, "--nnodes=1", "--nproc-per-node=2")
    agent = cluster.start("node1", *alone, RANKS, told.folder, "100")
    told.wait_for_steps()
    victim = told.rank(1)["process"]
    for path in told.folder.glob("rank-*"):
        path.unlink()
    assert cluster.run("node1", "kill", "-KILL", victim).returncode == 0
    out = cluster.output(agent)
    assert agent.returncode == 0, out
    assert (told.hosts, told.saved) == (["node1", "node1"], "done")
