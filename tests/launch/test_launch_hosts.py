"""bash launch/pretrain.sh --hosts FILE: what other machines' shells and ranks get."""

from __future__ import annotations

import re
import sys
from pathlib import Path

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
    assert "OMP_NUM_THREADS=3" in lines
    assert any(line.startswith(f"PATH={tmp_path}/bin:") for line in lines)
    assert "secret" not in done.stdout


def test_signals_go_to_the_ranks_of_this_run_alone(run, tmp_path):
    """On the machines of the host file, by a pattern for pkill."""
    hosts = tmp_path / "hosts"
    hosts.write_text("# two\nnode1 slots=2\n\nnode2\tslots=1 # the second\n")
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


def test_hosts_are_for_bash_and_need_a_file(run, toy_config):
    done = run("bash", PRETRAIN, "--config", toy_config, "--hosts")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--hosts needs a file with a line HOST slots=N for each machine" in done.stderr
    done = run(sys.executable, PRETRAIN, "--config", toy_config, "--hosts", "file")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--hosts file is for bash: bash launch/pretrain.sh --hosts file ..." in done.stderr
