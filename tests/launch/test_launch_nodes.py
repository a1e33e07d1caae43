"""Several machines: two DeepSpeed launchers that play two nodes, mpirun, and the Slurm template."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.checkpoint.files import list_checkpoints

ROOT = Path(__file__).parents[2]
PRETRAIN = ROOT / "launch" / "pretrain.sh"
SBATCH = ROOT / "launch" / "slurm" / "pretrain.sbatch"
MPIRUN = Path(sys.executable).parent / "mpirun"
pytestmark = pytest.mark.dist

PROGRAMS = {
    # One rank, which gets the signals that srun would pass on.
    "srun": """\
#!/usr/bin/env bash
export SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1
shift  # --kill-on-bad-exit
exec "$@"
""",
    "scontrol": '#!/usr/bin/env bash\necho "$@" >> "$SCONTROL_LOG"\n',
}


def shards(run_dir: Path) -> int:
    """Ranks that wrote the newest checkpoint."""
    return len(list(list_checkpoints(run_dir / "checkpoints")[-1].glob("*_optim_states.pt")))


@pytest.mark.slow
def test_two_nodes_with_a_hostfile_and_no_ssh(clean_environment, toy_config, tmp_path, free_port):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("nodeA slots=1\nnodeB slots=1\n")
    port = str(free_port())
    launchers = []
    for node in ("0", "1"):
        options = ["--hostfile", hostfile, "--no_ssh", "--node_rank", node]
        options += ["--master_addr", "127.0.0.1", "--master_port", port]
        launchers.append(
            subprocess.Popen(
                ["deepspeed", *options, PRETRAIN, "--config", toy_config, "train.num_steps=3"],
                env=clean_environment,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
    try:
        outputs = [launcher.communicate(timeout=600)[0] for launcher in launchers]
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert "done: 3 steps" in outputs[0]
    assert "done: 3 steps" not in outputs[1]
    assert shards(tmp_path / "run") == 2


def test_mpirun_starts_ranks(clean_environment, toy_config, tmp_path):
    options = ["--allow-run-as-root", "--oversubscribe", "-n", "2"]
    command = [sys.executable, PRETRAIN, "--config", toy_config, "train.num_steps=3"]
    done = subprocess.run(
        [MPIRUN, *options, *command],
        env=clean_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done: 3 steps") == 1
    assert shards(tmp_path / "run") == 2


@pytest.fixture
def slurm(clean_environment, tmp_path):
    """(environment, requeued): programs of Slurm in miniature, and the log of scontrol."""
    programs, log = tmp_path / "bin", tmp_path / "scontrol.log"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{clean_environment['PATH']}"
    own = {"PATH": path, "SCONTROL_LOG": str(log), "SLURM_JOB_ID": "77"}
    return clean_environment | own | {"SLURM_SUBMIT_DIR": str(ROOT)}, log


def test_the_slurm_job_saves_and_requeues_when_its_time_is_up(
    signalled, slurm, toy_config, tmp_path
):
    environ, log = slurm
    overrides = ["train.num_steps=100000", "checkpoint.every_steps=null"]
    command = ["bash", SBATCH, toy_config, *overrides]
    code, out, err = signalled(signal.SIGUSR1, command, environ)
    assert code == 0, out + err
    assert "stopped by SIGUSR1" in out
    assert log.read_text() == "requeue 77\n"
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1


SLEEPING_SRUN = """\
#!/usr/bin/env bash
trap 'exit 0' USR1
sleep 0.2  # the job knows its process by then
touch "$STARTED"
while :; do sleep 0.05; done
"""


@pytest.fixture
def job_without_ranks(slurm, tmp_path):
    """job_without_ranks(signals, **variables) -> (exit code, stderr) of a job whose time is up.

    signals: what the script gets before that.
    """
    started = tmp_path / "started"

    def run(*before: int, **variables: str) -> tuple[int, str]:
        if "keep_srun" not in variables:
            (tmp_path / "bin" / "srun").write_text(SLEEPING_SRUN)
        environ = slurm[0] | variables | {"STARTED": str(started)}
        job = subprocess.Popen(
            ["bash", SBATCH, "run.yaml"], env=environ, stderr=subprocess.PIPE, text=True
        )
        while not started.exists():
            assert job.poll() is None
            time.sleep(0.02)
        for number in before:
            job.send_signal(number)
            time.sleep(0.5)  # bash answers signals that come together in the order of their numbers
        job.send_signal(signal.SIGUSR1)
        _, err = job.communicate(timeout=60)
        return job.returncode, err

    return run


def test_a_task_of_an_array_is_requeued_alone(job_without_ranks, slurm):
    task = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}
    assert job_without_ranks(**task) == (0, "")
    assert slurm[1].read_text() == "requeue 77_3\n"


def test_a_script_told_to_end_does_not_let_srun_kill_the_ranks(job_without_ranks):
    """scancel tells them as well; a SIGTERM to srun kills them while they save."""
    assert job_without_ranks(signal.SIGTERM) == (0, "")


def test_a_job_that_cannot_be_requeued_has_failed(job_without_ranks, tmp_path):
    """Not done: nobody would look after a job that Slurm calls COMPLETED."""
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\necho disabled >&2\nexit 1\n")
    code, err = job_without_ranks()
    assert code == 1, err
    assert "job 77 could not be requeued; the run is saved: submit it again" in err


@pytest.mark.parametrize(
    ("limit", "refused"), [("5:00", True), ("0:30", True), ("UNLIMITED", False)]
)
def test_a_job_whose_signal_comes_at_its_start_is_refused(slurm, tmp_path, limit, refused):
    """It would be requeued for ever, a step each."""
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\necho {limit}\n")
    (tmp_path / "bin" / "squeue").chmod(0o755)
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\nexit 7\n")
    command = ["bash", SBATCH, "run.yaml"]
    done = subprocess.run(command, env=slurm[0], capture_output=True, text=True)
    assert done.returncode == (2 if refused else 7), done
    line = "s, and the run is told to save 300 s before its end: give more, e.g. --time=1:00:00\n"
    assert done.stderr.endswith(line) == refused
    assert not slurm[1].exists()


def test_a_job_told_to_end_before_python_runs_comes_again(job_without_ranks, slurm, tmp_path):
    srun = tmp_path / "bin" / "srun"
    srun.write_text(SLEEPING_SRUN.replace("exit 0", "exit 138"))  # a rank died by the signal
    assert job_without_ranks(keep_srun="1") == (0, "")
    assert slurm[1].read_text() == "requeue 77\n"


def test_a_job_that_only_comes_and_goes_is_refused(job_without_ranks, slurm):
    code, err = job_without_ranks(SLURM_RESTART_COUNT="3")
    assert code == 2
    assert "requeued 3 times, and now told to end after " in err
    assert not slurm[1].exists()


def test_the_slurm_job_is_not_requeued_for_a_mistake(slurm, toy_config):
    environ, log = slurm
    done = subprocess.run(
        ["bash", SBATCH, toy_config, "train.num_stepz=1"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    assert "did you mean train.num_steps?" in done.stderr
    assert not log.exists()
    done = subprocess.run(["bash", SBATCH], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_the_template_asks_for_its_signal_and_for_requeueing():
    text = SBATCH.read_text()
    for option in ("--signal=B:USR1@300", "--requeue", "--ntasks-per-node", "--gpus-per-node"):
        assert f"#SBATCH {option}" in text
    assert "\nLEAD=300\n" in text
