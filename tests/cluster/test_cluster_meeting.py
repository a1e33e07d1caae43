"""Ranks on two machines that do not find each other say why, and give up."""

from __future__ import annotations

import re

import pytest
from conftest import ETH0, MPIRUN, PYTHON, SRUN

pytestmark = pytest.mark.cluster


def test_mpirun_without_any_names(cluster, told):
    addresses = ",".join(map(cluster.address, cluster.names))
    with cluster.without_names():
        done = cluster.run(
            "node1", *MPIRUN, *ETH0, "-n", "2", "--host", addresses, *PYTHON, told.folder
        )
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node2"]


def test_slurm_without_any_names_says_so_and_gives_up(cluster, told):
    """Each rank by itself: srun was not told to kill the others."""
    with cluster.without_names():
        done = cluster.run("node1", *SRUN[:3], *PYTHON, told.folder, DEEPSPEED_TIMEOUT="1")
    assert done.returncode == 2, done.stdout
    assert "ranks (rank 1): waiting for rank 0 at node1:" in done.stdout
    why = r"\(since \d+ s; node2 does not know the name node1: set MASTER_ADDR"
    assert re.search(why, done.stdout)
    assert "ranks: waiting for 2 ranks at node1:" in done.stdout
    assert "not here: rank 1, not started, or unable to reach this address" in done.stdout


def test_an_address_that_is_each_machine_itself_is_named(cluster, told):
    local = {"MASTER_ADDR": "127.0.0.1", "DEEPSPEED_TIMEOUT": "1"}
    done = cluster.run("node1", *SRUN[:3], *PYTHON, told.folder, **local)
    assert done.returncode == 2, done.stdout
    assert "waiting for rank 0 at 127.0.0.1:" in done.stdout
    assert "is on another machine: then set MASTER_ADDR to an address of rank 0's" in done.stdout
