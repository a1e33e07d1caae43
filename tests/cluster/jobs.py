"""Jobs of Slurm with the project's script."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import Told
from machines import ROOT, Cluster

SBATCH = ROOT / "launch" / "slurm" / "pretrain.sbatch"


class Job:
    """A job, or an array of jobs, which writes into a file `log`.

    Args:
        words: options, the script, its arguments.
        folder: where it is submitted from.
    """

    def __init__(self, cluster: Cluster, told: Told, *words: object, folder: Path = ROOT) -> None:
        self.cluster, self.log = cluster, told.folder / "log"
        options = ["--parsable", "--nodes=2", "--ntasks-per-node=1", f"--output={self.log}"]
        done = cluster.run("node1", "env", "-C", folder, "sbatch", *options, *words)
        assert done.returncode == 0, done.stdout
        self.number = done.stdout.strip()

    def field(self, name: str, task: str = "") -> str:
        """What scontrol tells of it, or of a task of the array."""
        number = task or self.number
        shown = self.cluster.run("node1", "scontrol", "show", "job", number).stdout
        found = re.search(rf"{name}=(\S+)", shown)
        return found[1] if found else ""

    def state(self) -> str:
        """RUNNING, PENDING, COMPLETED, FAILED, ..."""
        return self.field("JobState")

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text() if self.log.exists() else ""

    def time_is_up(self, task: str = "") -> None:
        """What Slurm does some time before the limit."""
        self.cluster.run("node1", "scancel", "-s", "USR1", "-b", task or self.number)
