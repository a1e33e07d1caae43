"""The commands on exported models, started as a user starts them, from another folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCH = Path(__file__).resolve().parents[2] / "launch"


@pytest.mark.parametrize(
    ("script", "arguments", "code", "message"),
    [
        ("parse", ["--model", "nowhere"], 2, "parse: model nowhere does not exist"),
        ("evaluate", ["prplexity"], 2, "task 'prplexity' does not exist"),
        ("convert", ["to-hf", "nowhere", "out"], 3, "no checkpoint in nowhere"),
        ("finetune", ["--print-config"], 2, "finetune: command line: --config is missing"),
    ],
)
def test_faults_are_one_line(tmp_path, script, arguments, code, message):
    found = subprocess.run(
        ["bash", LAUNCH / f"{script}.sh", *arguments],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert found.returncode == code, found.stderr
    assert message in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("script", ["evaluate", "convert", "parse", "generate", "surprisal"])
def test_scripts_hand_over_their_arguments(tmp_path, script, linked):
    """To the Python of a checkout's .venv; this one only says how it was started."""
    launch, programs = tmp_path / "launch", tmp_path / ".venv" / "bin"
    launch.mkdir()
    programs.mkdir(parents=True)
    shutil.copy(LAUNCH / f"{script}.sh", launch)
    (programs / "python").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (programs / "python").chmod(0o755)
    typed = launch / f"{script}.sh"
    if linked:  # from a folder of the user's own
        (tmp_path / "link").symlink_to(typed)
        typed = tmp_path / "link"
    said = subprocess.check_output(["bash", typed, "a b", "--c"], text=True)
    assert said == f"-m|pipeline|{script}|a b|--c|"


def test_scripts_are_short_and_executable():
    for name in ("parse", "generate", "surprisal", "evaluate", "convert", "pretrain", "finetune"):
        script = LAUNCH / f"{name}.sh"
        assert script.stat().st_mode & 0o111
        assert len(script.read_text().splitlines()) < 60


DEMO = LAUNCH.parent / "configs" / "run" / "demo.yaml"


@pytest.mark.parametrize(
    "command",
    [
        [LAUNCH / "pretrain.sh", "--config", DEMO, "--print-config"],
        ["-m", "pipeline.treebank", "trees"],
    ],
)
def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path, command):
    (tmp_path / "trees").write_text("(S (NP (PRP He)) (VP (VBD slept)))\n" * 9)
    with subprocess.Popen(
        [sys.executable, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(LAUNCH.parent)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")


def test_a_dry_run_does_not_import_what_takes_seconds(tmp_path):
    start = ["pretrain", "--config", str(DEMO), f"run_dir={tmp_path}/run", "--dry-run"]
    code = (
        f"import sys; from pipeline.__main__ import main; main({start}); "
        "sys.exit(str({'transformers', 'torch._dynamo', 'deepspeed'} & {*sys.modules}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(LAUNCH.parent), "DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    assert found.stdout.startswith("model        gpst, ")
    assert found.stderr.strip() == "set()"
