"""launch/pretrain.sh as users start it: deepspeed, bash, python, torchrun; from anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PRETRAIN = Path(__file__).parents[2] / "launch" / "pretrain.sh"
BIN = Path(sys.executable).parent


def port(free_port) -> str:
    return f"--master_port={free_port()}"


@pytest.mark.dist
def test_deepspeed_starts_the_script_literally(run, toy_config, tmp_path, free_port):
    done = run("deepspeed", port(free_port), PRETRAIN, "--config", toy_config, "train.num_steps=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done: 2 steps" in done.stdout
    shards = (tmp_path / "run" / "checkpoints" / "step-000000002").glob("*_optim_states.pt")
    assert len(list(shards)) == 2  # it ran on two ranks


@pytest.mark.slow  # test_bash_ends_with_the_one_line_of_ranks_that_refuse
@pytest.mark.dist
def test_deepspeed_ends_with_the_code_and_the_line_of_a_user_error(run, toy_config, free_port):
    done = run("deepspeed", port(free_port), PRETRAIN, "--config", toy_config, "train.num_stepz=2")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean train.num_steps?" in done.stderr
    assert "Traceback" not in done.stdout


@pytest.mark.dist
def test_bash_tells_a_mistake_in_the_config_without_starting_deepspeed(run, toy_config):
    unstarted = {"DEEPSPEED_ARGS": "--no-such-option"}
    done = run("bash", PRETRAIN, "--config", toy_config, "train.num_stepz=2", **unstarted)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "did you mean train.num_steps?" in done.stderr


INTERACTIVE = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PTY_PORT": "40000", "SLURM_PTY_WIN_COL": "80",
}  # fmt: skip
"""What `srun --pty bash` sets in the shell."""


@pytest.mark.parametrize(
    "variables",
    [
        INTERACTIVE,
        INTERACTIVE | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"},
        INTERACTIVE | {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {name: value for name, value in INTERACTIVE.items() if "PTY" not in name},
    ],
    ids=["srun --pty", "of two tasks", "with PMI", "one task"],
)
def test_bash_starts_deepspeed_in_a_shell_of_slurm(run, stand_in, toy_config, variables):
    done = run("bash", PRETRAIN, "--config", toy_config, **stand_in(SAY), **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(", LOCAL_SIZE 2\n")


SAY = 'echo "$@, LOCAL_SIZE $LOCAL_SIZE"'


def test_address_and_port_reach_deepspeed_which_reads_no_variables(run, stand_in, toy_config):
    where = {"MASTER_PORT": "29517", "MASTER_ADDR": "10.0.0.1", "DEEPSPEED_ARGS": "--no_ssh"}
    done = run("bash", PRETRAIN, "--config", toy_config, **stand_in(SAY), **where)
    options = "--master_addr 10.0.0.1 --master_port 29517 --no_ssh"
    assert done.stdout.startswith(f"--log_level critical {options} {PRETRAIN} --config"), done


def test_bash_starts_all_ranks_of_a_lone_pod_and_none_of_several(run, stand_in, toy_config):
    """Kubeflow and its like set RANK and WORLD_SIZE, which count pods."""
    pod = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
    start = ("bash", PRETRAIN, "--config", toy_config)
    pod |= stand_in(SAY)
    done = run(*start, **pod)
    assert done.stdout.startswith("--log_level critical "), done
    done = run(*start, **pod | {"WORLD_SIZE": "2"})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert "WORLD_SIZE=2 are set and LOCAL_RANK is not" in done.stderr


def test_bash_is_a_rank_of_several_tasks_of_slurm(run, environ, toy_config):
    del environ["LOCAL_SIZE"]
    tasks = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    shell = {name: value for name, value in INTERACTIVE.items() if "PTY" not in name}
    done = run("bash", PRETRAIN, "--config", toy_config, "--dry-run", **(shell | tasks))
    assert done.returncode == 0, done.stderr
    assert "x 2 ranks" in done.stdout


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"LOCAL_SIZE": "abc"}, "LOCAL_SIZE='abc': a whole number of at least 1 is needed"),
        ({"OMP_NUM_THREADS": "4,2"}, "OMP_NUM_THREADS='4,2': a whole number"),
        ({"DEEPSPEED_TIMEOUT": "30m"}, "DEEPSPEED_TIMEOUT='30m': a whole number"),
        ({"DEEPSPEED_ARGS": "-H nowhere"}, "DEEPSPEED_ARGS: --hostfile nowhere: no such file"),
        ({"DEEPSPEED_ARGS": "--include localhost:x"}, "DEEPSPEED_ARGS: 'localhost:x': write HOST"),
        ({"DEEPSPEED_ARGS": "-i localhost:9", "DS_ACCELERATOR": "cpu"}, "No slot '9' specified"),
    ],
    ids=["LOCAL_SIZE", "OMP_NUM_THREADS", "DEEPSPEED_TIMEOUT", "hostfile", "include", "slot"],
)
def test_bash_says_a_wrong_variable_before_deepspeed_starts(run, toy_config, variables, line):
    done = run("bash", PRETRAIN, "--config", toy_config, **variables)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("pretrain: ")
    assert line in done.stderr


@pytest.mark.dist
def test_ranks_say_a_wrong_variable_once(start_ranks, clean_environment, toy_config, monkeypatch):
    monkeypatch.setitem(clean_environment, "DEEPSPEED_TIMEOUT", "30m")
    results = start_ranks(2, PRETRAIN, "--config", toy_config).finish()
    assert [code for code, _, _ in results] == [2, 2]
    assert "".join(err for _, _, err in results).count("\n") == 1
    assert "DEEPSPEED_TIMEOUT='30m'" in results[0][2]


@pytest.mark.dist
def test_bash_ends_with_the_one_line_of_ranks_that_refuse(run, toy_config, free_port):
    options = {"DEEPSPEED_ARGS": port(free_port), "DS_ACCELERATOR": "cpu"}
    done = run("bash", PRETRAIN, "--config", toy_config, "data.path=nowhere", **options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "data.path: no dataset directory nowhere" in done.stderr


@contextmanager
def started(config: Path, folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The script with a stand-in for deepspeed, once that has made the file `started`."""
    with subprocess.Popen(
        ["bash", PRETRAIN, "--config", str(config)], cwd=folder, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        while not (folder / "started").exists():
            assert process.poll() is None
            time.sleep(0.05)
        yield process


def processes_of_session(number: int) -> list[int]:
    """The newest first, so that none is left out that its parent starts meanwhile."""
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(number)], capture_output=True, text=True)
    return sorted(map(int, listed.stdout.split()), reverse=True)


SIGINT = pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)


@pytest.mark.dist
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 0), SIGINT])
def test_bash_starts_deepspeed_and_passes_signals_on(
    signalled, toy_config, tmp_path, environ, free_port, number, expected
):
    environ = environ | {"DEEPSPEED_ARGS": port(free_port)}
    command = ["bash", PRETRAIN, "--config", toy_config, "train.num_steps=100000"]
    code, out, err = signalled(number, command, environ)
    assert code == expected, out + err
    assert f"stopped by {number.name} at step " in out
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "stopped by SIGTERM before the ranks had begun; nothing was changed"),
        (signal.SIGUSR1, 0, "stopped by SIGUSR1 before the ranks had begun; nothing was changed"),
    ],
)
def test_a_stop_before_there_are_ranks_is_one_line(
    toy_config, tmp_path, environ, stand_in, number, code, line
):
    """A deepspeed that starts no rank; Ctrl-C goes to the whole process group of the terminal."""
    waiting = environ | stand_in("touch started\nsleep 60 & wait")
    with started(toy_config, tmp_path, waiting) as process:
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", f"pretrain: {line}\n")


def test_ranks_that_outlive_deepspeed_are_waited_for(toy_config, tmp_path, environ, stand_in):
    """`pkill -f` or a batch system sends a signal to all processes: deepspeed ends at once."""
    saving = "while [ ! -e seen ]; do sleep 0.1; done; touch saved; exit"
    rank = f"trap '{saving}' TERM; touch started; while :; do sleep 0.1; done"
    (tmp_path / "rank.sh").write_text(rank)
    # As deepspeed does: it starts a launcher, which starts the rank, and ends with its code.
    waiting = environ | stand_in("(bash rank.sh --local_rank=0 & wait) & wait $!")
    with started(toy_config, tmp_path, waiting) as process:
        for pid in processes_of_session(process.pid):
            with suppress(ProcessLookupError):  # a sleep that has ended since
                os.kill(pid, signal.SIGTERM)
        # Shells say "Terminated" of what they started, before or after it.
        said = next(line for line in process.stderr if "Terminated" not in line)
        (tmp_path / "seen").touch()
        out, err = process.communicate(timeout=60)
    waits = (
        "pretrain: deepspeed has ended before its ranks, which may be saving: waiting for them\n"
    )
    assert (out, said) == ("", waits)
    assert not [line for line in err.splitlines() if "Terminated" not in line]
    assert (tmp_path / "saved").exists()
    assert process.returncode == 143


@pytest.mark.dist
def test_bash_says_that_ranks_were_killed(run, toy_config, tmp_path, free_port):
    """As the system does it when memory runs out: no rank can say anything."""
    killer = tmp_path / "sitecustomize.py"
    killer.write_text("import os, sys\nif os.environ.get('RANK'): os.kill(os.getpid(), 9)\n")
    options = {"DEEPSPEED_ARGS": port(free_port), "DS_ACCELERATOR": "cpu"}
    options["PYTHONPATH"] = str(tmp_path)
    done = run("bash", PRETRAIN, "--config", toy_config, **options)
    assert done.returncode > 130
    assert "pretrain: a rank was killed" in done.stderr.splitlines()[-1]


@pytest.mark.dist
def test_torchrun_starts_the_script(run, toy_config, free_port):
    torchrun = [BIN / "torchrun", "--nproc-per-node=2", port(free_port)]
    done = run(*torchrun, PRETRAIN, "--config", toy_config, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "2 a micro-batch x 2 accumulated x 2 ranks" in done.stdout


def test_python_starts_one_rank(run, environ, toy_config):
    dry = [sys.executable, PRETRAIN, "--config", toy_config, "--dry-run"]
    done = run(*dry)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "LOCAL_SIZE=2 asks for 2 ranks, and this is one rank alone" in done.stderr
    del environ["LOCAL_SIZE"]
    done = run(*dry)
    assert (done.returncode, done.stderr) == (0, "")
    assert "x 1 rank)" in done.stdout


@pytest.mark.slow  # tests/pipeline/cost/test_memory.py: the same in this process
def test_dry_run_plans_for_8_a100_without_data(run, environ):
    del environ["LOCAL_SIZE"]
    config = PRETRAIN.parents[1] / "configs" / "run" / "gpst_small_openwebtext.yaml"
    done = run(sys.executable, PRETRAIN, "--config", config, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "memory on 8 x A100 80 GB" in done.stdout
    assert "not ready    the dataset is not there" in done.stdout


def test_executable_prints_the_config_without_starting_ranks(run, toy_config):
    done = run(PRETRAIN, "--config", toy_config, "--print-config")
    assert (done.returncode, done.stderr) == (0, "")
    assert "num_steps: 8" in done.stdout


def test_the_script_is_small_and_starts_nothing_twice():
    lines = PRETRAIN.read_text().splitlines()
    assert len(lines) < 60
    assert os.access(PRETRAIN, os.X_OK)
    assert subprocess.run(["bash", "-n", str(PRETRAIN)], check=True).returncode == 0
    compile("\n".join(lines), str(PRETRAIN), "exec")
