"""Ranks that deepspeed starts on other machines by ssh: what they get, and what ends them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from conftest import RANKS
from machines import wait_for

pytestmark = pytest.mark.cluster
LONG = "100000"


def settled(told) -> bool:
    """Whether the ranks have said why they saved."""
    return told.saved is not None


def test_bash_with_hosts_passes_everything_on(cluster, told, hosts):
    words = ["a&b", "two words", "$HOME;`id`", "it's", 'a "quoted" word', "*"]
    own = {"OMP_NUM_THREADS": "3", "GPST_KERNELS": "torch", "NCCL_DEBUG": "a $b"}
    command = ["bash", RANKS, "--hosts", hosts, told.folder, "3", "0", *words]
    done = cluster.run("node1", *command, **own)
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node2"]
    for rank in (0, 1):
        about = told.rank(rank)
        assert about["words"][-len(words) :] == words
        assert os.path.samefile(about["prefix"], sys.prefix)
        assert about["OMP_NUM_THREADS"] == "3"
        assert about["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_bash_with_hosts_starts_on_one_other_machine(cluster, told):
    (told.folder / "hosts").write_text("node2 slots=2\n")
    done = cluster.run("node1", "bash", RANKS, f"--hosts={told.folder}/hosts", told.folder)
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node2", "node2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_bash_with_hosts_passes_signals_on(cluster, told, hosts, number):
    run = cluster.start("node1", "bash", RANKS, "--hosts", hosts, told.folder, LONG)
    told.wait_for_steps()
    cluster.signal(run, number)
    out, _ = run.communicate(timeout=120)
    assert (run.returncode, told.saved) == (0, number.name), out


@pytest.fixture
def deepspeed(cluster, told, hosts):
    """deepspeed(what follows in a shell) -> the process, with what docs/cluster.md says to set."""
    variables = "\n".join(f"{n}={cluster._environment[n]}" for n in ("PATH", "DS_ACCELERATOR"))
    (told.folder / ".deepspeed_env").write_text(f"{variables}\nOMP_NUM_THREADS=1\n")

    def start(after: str, steps: object = LONG):
        command = f"exec deepspeed --hostfile {hosts} {RANKS} {told.folder} {steps}"
        if after:
            command = command.removeprefix("exec ") + after
        return cluster.start("node1", "bash", "-c", f"cd {told.folder} && {command}")

    return start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_ranks_of_a_deepspeed_that_ends_save(cluster, told, deepspeed, number):
    run = deepspeed("")
    told.wait_for_steps()
    cluster.signal(run, number)
    out, _ = run.communicate(timeout=120)
    wait_for(lambda: settled(told), 60)
    assert told.saved in ("SIGTERM", "the end of the deepspeed command"), out


def test_a_reader_that_has_seen_enough_ends_no_run(cluster, told, deepspeed):
    """pdsh may end at its next line; then the connections end, and the ranks save."""
    run = deepspeed(" 2>&1 | head -n 1", steps=150)
    told.wait_for_steps()
    wait_for(lambda: settled(told))
    assert told.saved in ("done", "the end of the deepspeed command")
    run.communicate(timeout=120)


def test_without_ssh_a_launcher_on_each_machine(cluster, told, hosts):
    where = ("--master_addr", "node1", "--master_port", "29713")
    launchers = [
        cluster.start(
            name,
            *("deepspeed", "--hostfile", hosts, "--no_ssh", "--node_rank", number, *where),
            *(RANKS, told.folder),
        )
        for number, name in enumerate(cluster.names)
    ]
    outputs = [launcher.communicate(timeout=300)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert told.hosts == ["node1", "node2"]
