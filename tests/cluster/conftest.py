"""The cluster of these tests, and ranks on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from machines import ROOT, Cluster, wait_for, why_not

RANKS = ROOT / "tests" / "cluster" / "ranks.sh"
LONG = "100000"
"""Steps that nobody waits for."""
SRUN = ("srun", "-N2", "-n2", "--kill-on-bad-exit=1")
MPIRUN = (str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root")
ETH0 = ("--mca", "btl_tcp_if_include", "eth0")
"""MPI tries all networks otherwise, docker0 too."""
TORCHRUN = (
    *("torchrun", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--monitor-interval=1"),
    *("--rdzv-backend=c10d", "--rdzv-endpoint=node1:29711"),
)
PYTHON = (sys.executable, "-u", RANKS)


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """Two machines with ssh and Slurm. Their logs stay if a test fails."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    machines = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        machines.up()
        yield machines
    finally:
        machines.down()
        if not request.session.testsfailed:
            shutil.rmtree(machines.folder)


class Told:
    """What ranks.sh wrote into its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rank(self, number: int) -> dict[str, Any]:
        """What a rank said about itself."""
        return json.loads((self.folder / f"rank-{number}").read_text())

    @property
    def hosts(self) -> list[str]:
        """The machines of the ranks."""
        return [self.rank(number)["host"] for number in range(len([*self.folder.glob("rank-*")]))]

    @property
    def saved(self) -> str | None:
        """Why the ranks saved and ended."""
        path = self.folder / "saved"
        return path.read_text() if path.exists() else None

    def wait_for_steps(self) -> None:
        """Until both ranks take steps."""
        wait_for(lambda: len([*self.folder.glob("rank-*")]) == 2)


@pytest.fixture
def told(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Told]:
    """A folder that all machines see, for the ranks of a test; those that are left are killed."""
    folder = cluster.folder / "runs" / request.node.name.replace("/", "-")
    folder.mkdir(parents=True)
    yield Told(folder)
    cluster.clear()


@pytest.fixture
def hosts(cluster: Cluster) -> Path:
    """A host file with a rank on each machine."""
    path = cluster.folder / "hosts"
    path.write_text("".join(f"{name} slots=1\n" for name in cluster.names))
    return path


@pytest.fixture
def deepspeed(cluster: Cluster, told: Told, hosts: Path) -> Callable[..., subprocess.Popen[str]]:
    """deepspeed(what follows in a shell) -> the process, with what docs/cluster.md says to set."""
    variables = "\n".join(f"{n}={cluster.environment[n]}" for n in ("PATH", "DS_ACCELERATOR"))
    (told.folder / ".deepspeed_env").write_text(f"{variables}\nOMP_NUM_THREADS=1\n")

    def start(after: str = "", steps: object = LONG) -> subprocess.Popen[str]:
        command = f"deepspeed --hostfile {hosts} {RANKS} {told.folder} {steps}{after}"
        if not after:
            command = f"exec {command}"
        return cluster.start("node1", "bash", "-c", f"cd {told.folder} && {command}")

    return start


LONGEST_FIRST = ["test_cluster_silence.py", "test_cluster_runs.py", "test_cluster_meeting.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for time limits come first: the others run meanwhile."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
