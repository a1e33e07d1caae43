"""The cluster of these tests, and a run on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from machines import ROOT, Cluster, wait_for, why_not

RANKS = ROOT / "tests" / "cluster" / "ranks.sh"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two machines with ssh and Slurm."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    machines = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        machines.up()
        yield machines
    finally:
        machines.down()


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
    cluster.run("node1", "scancel", "--user=root", "--signal=KILL")
    for name in cluster.names:
        cluster.run(name, "pkill", "-KILL", "-f", "deepspeed|torchrun|(ranks|pretrain).sh")


@pytest.fixture
def hosts(cluster: Cluster) -> Path:
    """A host file with a rank on each machine."""
    path = cluster.folder / "hosts"
    path.write_text("".join(f"{name} slots=1\n" for name in cluster.names))
    return path
