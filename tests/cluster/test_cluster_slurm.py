"""Slurm: steps, arrays, mpirun inside a job; the project's script with ranks in miniature."""

from __future__ import annotations

import os

import pytest
from conftest import ETH0, LONG, MPIRUN, PYTHON, RANKS, SRUN
from jobs import SBATCH, Job
from machines import wait_for

pytestmark = pytest.mark.cluster


def test_two_steps_of_a_job_at_once(cluster, told):
    """Each has a port of its own."""
    for name in "ab":
        (told.folder / name).mkdir()
    program = " ".join(map(str, (*SRUN, "--overlap", *PYTHON, f"{told.folder}/$step", "30")))
    steps = f"for step in a b; do {program} & done; wait -n && wait"
    done = cluster.run("node1", "salloc", "-N2", "-n2", "bash", "-c", steps)
    assert done.returncode == 0, done.stdout
    assert [(told.folder / name / "saved").read_text() for name in "ab"] == ["done", "done"]


def test_a_gpu_for_each_task_and_cores_of_its_own(cluster, told):
    """What Slurm sets; which GPU and how many threads a rank takes of it has tests of its own."""
    srun = ("srun", "-N1", "-n2", "--cpus-per-task=2", "--gpus-per-task=1")
    done = cluster.run("node1", "env", "-u", "OMP_NUM_THREADS", *srun, *PYTHON, told.folder)
    assert done.returncode == 0, done.stdout
    cores = min(2, len(os.sched_getaffinity(0)))
    for rank in (0, 1):
        about = told.rank(rank)
        assert (about["LOCAL_RANK"], about["threads"]) == (str(rank), cores)
        assert len(about["CUDA_VISIBLE_DEVICES"].split(",")) == 1


def test_mpirun_inside_a_job(cluster, told):
    """It takes the job's machines from Slurm."""
    mpirun = (*MPIRUN, *ETH0, "-n", "2", *PYTHON, told.folder)
    done = cluster.run("node1", "salloc", "-N2", "-n2", *mpirun)
    assert done.returncode == 0, done.stdout
    assert told.hosts == ["node1", "node2"]


@pytest.fixture
def miniature(told):
    """The working directory of a job whose launch/pretrain.sh is ranks.sh."""
    (told.folder / "launch").mkdir()
    (told.folder / "launch" / "pretrain.sh").symlink_to(RANKS)
    return told.folder


def test_a_task_of_an_array_is_requeued_alone_and_comes_again(cluster, told, miniature):
    words = ("--array=1-2%1", "--nodes=1", "--gpus-per-node=0", SBATCH, told.folder, LONG)
    array = Job(cluster, told, *words, folder=miniature)
    first, second = f"{array.number}_1", f"{array.number}_2"
    wait_for(lambda: "step 0" in array.said())
    array.time_is_up(first)
    wait_for(lambda: f"job {first} goes back into the queue" in array.said())
    assert told.saved == "SIGUSR1"
    wait_for(lambda: array.said().count("step 0") == 2)
    wait_for(lambda: array.field("Restarts", first) == "1")
    assert array.field("Restarts", second) == "0"


def test_a_time_limit_below_the_signals_lead_is_refused(cluster, told, miniature):
    job = Job(cluster, told, "--time=5", SBATCH, told.folder, folder=miniature)
    wait_for(lambda: job.state() == "FAILED", 60)
    assert "--time is 300 s, and the run is told to save 300 s before its end" in job.said()


@pytest.mark.parametrize("number", ["USR1", "TERM"])
def test_a_signal_while_rank_0_checks_ends_all_ranks(cluster, told, number):
    step = cluster.start("node1", *SRUN, *PYTHON, told.folder, "3", "1000")
    wait_for(lambda: (told.folder / "checking").exists())
    cluster.run("node1", "bash", "-c", f"scancel -s {number} $(squeue -h -o %i)")
    out = cluster.output(step)
    assert f"ranks: stopped by SIG{number} before the first step; nothing was changed" in out
    assert step.returncode == (0 if number == "USR1" else 143), out
    assert os.listdir(told.folder) == ["checking"]
