"""Real runs on two machines: training, saving, resuming; data over MPI."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from conftest import Told
from machines import ROOT, Cluster, wait_for
from tokenizers import Tokenizer, models, pre_tokenizers

from pipeline.checkpoint.files import list_checkpoints
from pipeline.monitor.metrics_file import read_metrics

pytestmark = pytest.mark.cluster
PRETRAIN = ROOT / "launch" / "pretrain.sh"
SBATCH = ROOT / "launch" / "slurm" / "pretrain.sbatch"
MPIRUN = (str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root")


@pytest.fixture
def config(cluster, told, toy_dataset, toy_run):
    """The configuration of a toy run, where all machines see it; its run_dir is told.folder/run."""
    data = cluster.folder / "data"
    if not data.exists():
        shutil.copytree(toy_dataset, data)
    settings = toy_run(told.folder / "run") | {"data": {"path": str(data), "context_tokens": 32}}
    path = told.folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def steps(told: Told) -> list[int]:
    """The steps in metrics.jsonl."""
    return [line["step"] for line in read_metrics(told.folder / "run" / "metrics.jsonl")]


class Job:
    """A job of Slurm with the project's script."""

    def __init__(self, cluster: Cluster, told: Told, *words: object) -> None:
        self.cluster, self.log = cluster, told.folder / "log"
        options = ["--parsable", "--nodes=2", "--ntasks-per-node=1", f"--output={self.log}"]
        command = " ".join(map(str, ["sbatch", *options, *words]))
        done = cluster.run("node1", "bash", "-c", f"cd {ROOT} && {command}")
        assert done.returncode == 0, done.stdout
        self.number = done.stdout.strip()

    def state(self) -> str:
        """As squeue or scontrol has it: RUNNING, PENDING, COMPLETED, FAILED, ..."""
        shown = self.cluster.run("node1", "scontrol", "show", "job", self.number).stdout
        found = re.search(r"JobState=(\w+)", shown)
        return found[1] if found else ""

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text() if self.log.exists() else ""

    def time_is_up(self) -> None:
        """What Slurm does some time before the limit."""
        self.cluster.run("node1", "scancel", "-s", "USR1", "-b", self.number)


def test_the_job_of_slurm_saves_comes_again_and_resumes(cluster, told, config):
    """A signal while modules load, one in training, and scancel."""
    job = Job(
        cluster, told, SBATCH, config, "train.num_steps=100000", "checkpoint.every_steps=null"
    )
    wait_for(lambda: job.state() == "RUNNING", 60)
    wait_for(lambda: "pretrain.sh" in cluster.run("node2", "ps", "-eo", "args").stdout, 60)
    job.time_is_up()
    wait_for(lambda: job.said().count("goes back into the queue") == 1, 120)
    assert steps(told) == []
    wait_for(lambda: len(steps(told)) > 2, 300)
    job.time_is_up()
    wait_for(lambda: job.said().count("goes back into the queue") == 2, 120)
    assert "stopped by SIGUSR1 at step " in job.said()
    wait_for(lambda: "resumed from " in job.said(), 300)
    cluster.run("node1", "scancel", job.number)
    wait_for(lambda: job.state() in ("CANCELLED", "COMPLETED", "FAILED"), 120)
    wait_for(lambda: "stopped by SIGTERM at step " in job.said(), 60)


def test_a_time_limit_below_the_signals_lead_is_refused(cluster, told, config):
    job = Job(cluster, told, "--time=5", SBATCH, config)
    wait_for(lambda: job.state() == "FAILED", 60)
    assert "--time is 300 s, and the run is told to save 300 s before its end" in job.said()


def test_a_run_by_ssh_resumes_on_one_machine(cluster, told, config, hosts):
    words = ("--config", config, "train.num_steps=4")
    done = cluster.run("node1", "bash", PRETRAIN, "--hosts", hosts, *words, "train.stop_at_step=2")
    assert done.returncode == 0, done.stdout
    assert "stopped at step 2 of 4" in done.stdout
    newest = list_checkpoints(told.folder / "run" / "checkpoints")[-1]
    assert len([*newest.glob("*_optim_states.pt")]) == 2
    done = cluster.run("node2", sys.executable, PRETRAIN, *words)
    assert done.returncode == 0, done.stdout
    assert "resumed from " in done.stdout
    assert steps(told) == [1, 2, 3, 4]


def test_torchrun_resumes_after_a_rank_was_killed(cluster, told, config):
    options = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--monitor-interval=1"]
    options += ["--rdzv-backend=c10d", "--rdzv-endpoint=node1:29712"]
    words = (PRETRAIN, "--config", config, "train.num_steps=100000")
    agents = [cluster.start(name, "torchrun", *options, *words) for name in cluster.names]
    wait_for(lambda: len(steps(told)) > 3, 300)
    cluster.run("node2", "pkill", "-KILL", "-f", "--", f"-u {PRETRAIN}")
    before = len(steps(told))
    wait_for(lambda: len(steps(told)) > before + 2, 300)
    cluster.run("node1", "pkill", "-TERM", "-f", "--", f"-u {PRETRAIN}")
    outputs = [agent.communicate(timeout=120)[0] for agent in agents]
    assert "resumed from " in outputs[0] + outputs[1], outputs
    assert steps(told) == [*range(1, len(steps(told)) + 1)]


@pytest.fixture
def build(told):
    """build(name) -> the command that builds the same small dataset into told.folder/name."""
    folder = told.folder / "text"
    folder.mkdir()
    for number in range(6):
        text = "".join(f"Sentence {n} of text {number}. It ends here.\n\n" for n in range(40))
        (folder / f"{number}.txt").write_text(text)
    letters = pre_tokenizers.ByteLevel.alphabet()
    names = {name: number for number, name in enumerate(["<|endoftext|>", *sorted(letters)])}
    tokenizer = Tokenizer(models.BPE(names, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.add_special_tokens(["<|endoftext|>"])
    (told.folder / "tokenizer").mkdir()
    tokenizer.save(str(told.folder / "tokenizer" / "tokenizer.json"))

    def command(name: str) -> list[str]:
        words = f"-m data_prep build --source text --input {folder} --unit-mib 1"
        words += f" --tokenizer {told.folder}/tokenizer --end-of-document <|endoftext|>"
        return [sys.executable, *words.split(), "--output", str(told.folder / name)]

    return command


def test_data_over_mpi_is_the_same_and_srun_is_refused(cluster, told, build):
    done = cluster.run("node1", *build("alone"))
    assert done.returncode == 0, done.stdout
    where = ("-n", "3", "--host", "node1:2,node2:1", "-x", "PYTHONPATH")
    done = cluster.run("node1", *MPIRUN, *where, *build("mpi"), "--backend", "mpi")
    assert done.returncode == 0, done.stdout
    names = sorted(path.name for path in (told.folder / "alone").glob("shard-*"))
    assert names
    for name in names:
        assert (told.folder / "alone" / name).read_bytes() == (
            told.folder / "mpi" / name
        ).read_bytes()
    srun = ("srun", "-N2", "-n2", "--mpi=pmi2")
    done = cluster.run("node1", *srun, *build("srun"), "--backend", "mpi")
    assert done.returncode != 0
    assert (
        "SLURM_STEP_NUM_TASKS=2 processes were started, and each sees itself alone" in (done.stdout)
        or "PMI_SIZE=2 processes were started" in done.stdout
    ), done.stdout
    assert not (told.folder / "srun").exists()
