"""Real runs on two machines: training, saving, resuming; data over MPI."""

from __future__ import annotations

import re
import shutil
import signal
import sys

import pytest
import yaml
from conftest import ETH0, MPIRUN, TORCHRUN, Told
from jobs import SBATCH, Job
from machines import ROOT, wait_for
from tokenizers import Tokenizer, models, pre_tokenizers

from pipeline.checkpoint.files import list_checkpoints
from pipeline.monitor.metrics_file import read_metrics

pytestmark = pytest.mark.cluster
PRETRAIN = ROOT / "launch" / "pretrain.sh"


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


def test_the_job_of_slurm_saves_comes_again_and_resumes(cluster, told, config):
    """A signal while modules load, one in training, and scancel."""
    job = Job(
        cluster, told, SBATCH, config, "train.num_steps=100000", "checkpoint.every_steps=null"
    )
    wait_for(lambda: job.state() == "RUNNING")
    wait_for(lambda: "pretrain.sh" in cluster.run("node2", "ps", "-eo", "args").stdout)
    job.time_is_up()
    wait_for(lambda: job.said().count("goes back into the queue") == 1)
    assert steps(told) == []
    wait_for(lambda: len(steps(told)) > 2)
    job.time_is_up()
    wait_for(lambda: job.said().count("goes back into the queue") == 2)
    assert "stopped by SIGUSR1 at step " in job.said()
    wait_for(lambda: "resumed from " in job.said())
    cluster.run("node1", "scancel", job.number)
    wait_for(lambda: job.state() in ("CANCELLED", "COMPLETED", "FAILED"))
    wait_for(lambda: "stopped by SIGTERM at step " in job.said())


def test_a_run_by_ssh_saves_and_resumes_on_one_other_machine(cluster, told, config, hosts):
    bash = ("bash", PRETRAIN, "--config", config)
    run = cluster.start("node1", *bash, "train.num_steps=100000", "--hosts", hosts)
    wait_for(lambda: len(steps(told)) > 2)
    cluster.signal(run, signal.SIGTERM)
    out = cluster.output(run)
    assert run.returncode == 0, out
    assert "stopped by SIGTERM at step " in out
    newest = list_checkpoints(told.folder / "run" / "checkpoints")[-1]
    assert len([*newest.glob("*_optim_states.pt")]) == 2
    (told.folder / "other").write_text("node2 slots=1\n")
    last = steps(told)[-1] + 2
    words = (f"train.num_steps={last}", f"--hosts={told.folder}/other")
    done = cluster.run("node1", *bash, *words)
    assert done.returncode == 0, done.stdout
    assert re.search("^node2: .*resumed from ", done.stdout, re.MULTILINE), done.stdout
    assert steps(told) == [*range(1, last + 1)]


def test_torchrun_resumes_after_a_rank_was_killed(cluster, told, config):
    words = (*TORCHRUN, PRETRAIN, "--config", config, "train.num_steps=100000")
    agents = [cluster.start(name, *words) for name in cluster.names]
    wait_for(lambda: len(steps(told)) > 3)
    ranks = ("-f", "--", f"-u {PRETRAIN}")
    assert cluster.run("node2", "pkill", "-KILL", *ranks).returncode == 0
    before = len(steps(told))
    wait_for(lambda: len(steps(told)) > before + 2)
    cluster.run("node1", "pkill", "-TERM", *ranks)
    outputs = [cluster.output(agent) for agent in agents]
    assert "resumed from " in "".join(outputs), outputs
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
    mpirun = (*MPIRUN, *ETH0, "-n", "3", *build("mpi"), "--backend", "mpi")
    done = cluster.run("node1", "salloc", "-N2", "-n3", *mpirun)
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
