"""What a signal to the command does to its ranks on two machines, by each launcher."""

from __future__ import annotations

import time
from signal import SIGINT, SIGTERM, SIGUSR1

import pytest
from conftest import ETH0, LONG, MPIRUN, PYTHON, RANKS, SRUN, TORCHRUN
from machines import wait_for

pytestmark = pytest.mark.cluster
SAVING_S = 3.0
"""As in ranks.sh."""
GONE = "the end of the deepspeed command"
CASES = [
    # launcher, signal, exit code of the command, what the ranks save for (nothing: they are killed)
    # bash and SIGTERM: test_cluster_runs.py
    ("bash", SIGUSR1, 0, ["SIGUSR1"]),
    ("bash", SIGINT, 130, ["SIGINT"]),
    ("deepspeed", SIGTERM, 1, ["SIGTERM", GONE]),
    ("deepspeed", SIGINT, 1, ["SIGTERM", GONE]),
    ("srun", SIGTERM, 137, []),  # scancel: test_cluster_runs.py
    ("srun", SIGUSR1, 0, ["SIGUSR1"]),
    ("mpirun", SIGTERM, 1, []),
    ("mpirun", SIGUSR1, 0, ["SIGUSR1"]),
    ("mpirun", SIGINT, 1, []),
    ("torchrun", SIGTERM, 1, ["SIGTERM"]),
    ("torchrun", SIGUSR1, -SIGUSR1, ["SIGTERM"]),
    ("torchrun", SIGINT, 1, ["SIGINT"]),
]


@pytest.fixture
def launch(cluster, told, hosts, deepspeed):
    """launch(launcher) -> the command, once its two ranks take steps."""
    own = (told.folder, LONG)
    commands = {
        "bash": ("bash", RANKS, "--hosts", hosts, *own),
        "srun": (*SRUN, *PYTHON, *own),
        "mpirun": (*MPIRUN, *ETH0, "-n", "2", "--host", "node1,node2", *PYTHON, *own),
        "torchrun": (*TORCHRUN, RANKS, *own),
    }

    def start(launcher):
        if launcher == "torchrun":
            cluster.start("node2", *commands[launcher])
        if launcher == "deepspeed":
            run = deepspeed()
        else:
            run = cluster.start("node1", *commands[launcher])
        told.wait_for_steps()
        return run

    return start


@pytest.mark.parametrize(
    ("launcher", "number", "code", "reasons"), CASES, ids=[f"{c[0]}-{c[1].name}" for c in CASES]
)
def test_a_signal_to_the_command(cluster, told, launch, launcher, number, code, reasons):
    run = launch(launcher)
    cluster.signal(run, number)
    out = cluster.output(run)
    assert run.returncode == code, out
    if reasons:
        wait_for(lambda: told.saved is not None, 60)
        assert told.saved in reasons
    else:
        assert told.saved is None


@pytest.mark.parametrize(("launcher", "number"), [("deepspeed", SIGUSR1), ("srun", SIGINT)])
def test_a_signal_that_does_not_reach_the_ranks(cluster, told, launch, launcher, number):
    """deepspeed dies, but pdsh holds the connections; srun wants two within a second."""
    run = launch(launcher)
    cluster.signal(run, number)
    time.sleep(2 * SAVING_S)
    assert told.saved is None
    assert run.poll() == (-SIGUSR1 if launcher == "deepspeed" else None)
    for rank in (0, 1):
        about = told.rank(rank)
        assert cluster.run(about["host"], "kill", "-0", about["process"]).returncode == 0


def test_a_reader_that_has_seen_enough_ends_no_run(cluster, told, deepspeed):
    """pdsh may end at its next line; then the connections end, and the ranks save."""
    run = deepspeed(" 2>&1 | head -n 1", steps=150)
    told.wait_for_steps()
    assert told.rank(1)["PATH"] == cluster.environment["PATH"]  # of .deepspeed_env
    wait_for(lambda: told.saved is not None)
    assert told.saved in ("done", GONE)
    cluster.output(run)
