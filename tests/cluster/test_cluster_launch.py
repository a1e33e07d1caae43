"""Each way of docs/cluster.md to start ranks on two machines, and what it passes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import ETH0, MPIRUN, PYTHON, RANKS, SRUN, TORCHRUN

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_srun_with_each_kind_of_mpi(cluster, told, mpi):
    """The nodes' own names are 127.0.1.1 at home; pmi2 is this cluster's MpiDefault."""
    done = cluster.run("node1", *SRUN, f"--mpi={mpi}", *PYTHON, told.folder)
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node2"]
    for rank in (0, 1):
        about = told.rank(rank)
        assert (about["ranks"], about["GLOO_SOCKET_IFNAME"]) == (2, "eth0")
        assert about["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_mpirun_where_own_names_are_loopback(cluster, told):
    where = ("-n", "2", "--host", "node1:1,node2:1", "-x", "PATH")
    done = cluster.run("node1", *MPIRUN, *ETH0, *where, *PYTHON, told.folder)
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node2"]
    assert os.path.samefile(told.rank(1)["prefix"], sys.prefix)


def test_torchrun_on_each_machine(cluster, told):
    agents = [cluster.start(name, *TORCHRUN, RANKS, told.folder) for name in cluster.names]
    outputs = [cluster.output(agent) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert sorted(told.hosts) == ["node1", "node2"]


def test_bash_with_hosts_passes_everything_on(cluster, told):
    (told.folder / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    words = ["a&b", "two words", "$HOME;`id`", "it's", 'a "quoted" word', "*"]
    own = {"OMP_NUM_THREADS": "3", "GPST_KERNELS": "torch", "NCCL_DEBUG": "a $b"}
    command = ["bash", RANKS, "--hosts", told.folder / "hosts", told.folder, "3", "0", *words]
    done = cluster.run("node1", *command, **own, HF_TOKEN="secret")
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node1", "node2", "node2"]
    for rank in range(4):
        about = told.rank(rank)
        assert (about["ranks"], about["LOCAL_RANK"]) == (4, str(rank % 2))
        assert about["words"][-len(words) :] == words
        assert os.path.samefile(about["prefix"], sys.prefix)
        assert {name: about[name] for name in own} == own
        assert about["PATH"].split(":")[0] == str(Path(sys.executable).parent)
        assert about["HF_TOKEN"] is None


def test_deepspeed_without_ssh_on_each_machine(cluster, told, hosts):
    where = ("--master_addr", "node1", "--master_port", "29713")
    launchers = [
        cluster.start(
            name,
            *("deepspeed", "--hostfile", hosts, "--no_ssh", "--node_rank", number, *where),
            *(RANKS, told.folder),
        )
        for number, name in enumerate(cluster.names)
    ]
    outputs = [cluster.output(launcher) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert told.hosts == ["node1", "node2"]
