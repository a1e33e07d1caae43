"""bash launch/pretrain.sh --hosts FILE: what other machines' shells and ranks get."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGINT, SIGTERM, SIGUSR1

import pytest

PRETRAIN = Path(__file__).parents[2] / "launch" / "pretrain.sh"
SHELLS = f"""\
#!{sys.executable}
import os, re, subprocess, sys
command = ""
for line in open(os.environ["DS_ENV_FILE"]):
    name, value = line.rstrip().split("=", 1)
    if re.search("[^a-zA-Z0-9_@%+=:,./-]", value):
        value = '"' + value + '"'
    command += "export " + name + "=" + value + "; "
words = ['"' + w.replace('"', '\\\\"') + '"' if " " in w else w for w in sys.argv[1:]]
command += "printf '%s\\\\n' " + " ".join(words) + "; env"
sys.exit(subprocess.run(["env", "-i", "bash", "-c", command]).returncode)
"""
"""What deepspeed 0.19.8 does with pdsh: another machine's shell gets it all as one string."""


def test_bash_with_hosts_passes_variables_and_arguments_through_the_other_shell(
    run, stand_in, toy_config, tmp_path
):
    path = stand_in("")
    (tmp_path / "bin" / "deepspeed").write_text(SHELLS)
    for program in ("pdsh", "ssh"):
        (tmp_path / "bin" / program).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / program).chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("node1 slots=2\nnode2 slots=2\n")
    (tmp_path / ".deepspeed_env").write_text("# mine\n\nNCCL_IB_HCA=mlx5\n")
    words = ["run_dir=a&b", "monitor.wandb=two words $HOME `id`", 'monitor.prompts=["a","it\'s"]']
    variables = {"NCCL_DEBUG": 'a $b "c"', "OMP_NUM_THREADS": "3", "HF_TOKEN": "secret"}
    done = run(
        "bash", PRETRAIN, "--hosts", hosts, "--config", toy_config, *words, **path | variables
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    lines = done.stdout.splitlines()
    start = ["--log_level", "critical", "--hostfile", str(hosts), "--force_multi", str(PRETRAIN)]
    assert lines[: len(start) + 5] == [*start, "--config", str(toy_config), *words]
    assert 'NCCL_DEBUG=a $b "c"' in lines
    assert {"OMP_NUM_THREADS=3", "NCCL_IB_HCA=mlx5"} <= {*lines}
    assert any(line.startswith(f"PATH={tmp_path}/bin:") for line in lines)
    assert "secret" not in done.stdout


def test_signals_go_to_the_ranks_of_this_run_alone(run, tmp_path):
    """On the machines of the host file, by a pattern for pkill."""
    hosts = tmp_path / "hosts"
    hosts.write_text("# two\n\tnode1 slots=2\n\nnode2\tslots=1 # the second\n")
    words = ["--config", "x.yaml", "p=[1,2]", "a+b", "two words", "q\\z|$"]
    script = 'SELF=/a/b.sh ARGUMENTS=("$@"); . launch/hosts.bash; echo "$WORKERS"; echo "$RANK"'
    arguments = {"DEEPSPEED_ARGS": f"--num_nodes 2 --hostfile={hosts} --force_multi"}
    shell = ("bash", "-c", f"cd {PRETRAIN.parents[1]}; {script}", "bash", *words)
    workers, pattern = run(*shell, **arguments).stdout.splitlines()
    assert workers == "node1,node2"
    rank = "python -u /a/b.sh --local_rank=12 " + " ".join(words)
    assert re.search(pattern, rank)
    assert not re.search(pattern, rank.replace("p=[1,2]", "p=1"))
    assert not re.search(pattern, rank.replace("/a/b.sh", "/a/bXsh"))


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGTERM, 143), (SIGUSR1, 0)])
def test_a_stop_while_other_machines_load_python_is_one_line(
    environ, stand_in, toy_config, tmp_path, number, code
):
    """No machine has a rank yet, and deepspeed with pdsh ends with 1 when it is told to."""
    environ |= stand_in("trap 'exit 1' TERM; touch started; sleep 60 & wait")
    for program in ("pdsh", "ssh"):
        (tmp_path / "bin" / program).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / program).chmod(0o755)
    (tmp_path / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    with subprocess.Popen(
        ["bash", PRETRAIN, "--hosts", "hosts", "--config", toy_config], cwd=tmp_path, env=environ,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ctrl_c_is_heard,
    ) as process:  # fmt: skip
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (code, "", 1), err


def ctrl_c_is_heard() -> None:
    """Whatever started the tests in the background."""
    signal.signal(SIGINT, signal.SIG_DFL)


def test_hosts_are_for_bash_and_need_a_file(run, toy_config):
    done = run("bash", PRETRAIN, "--config", toy_config, "--hosts")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--hosts needs a file with a line HOST slots=N for each machine" in done.stderr
    done = run(sys.executable, PRETRAIN, "--config", toy_config, "--hosts", "file")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--hosts file is for bash: bash launch/pretrain.sh --hosts file ..." in done.stderr
