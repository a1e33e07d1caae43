"""The commands on exported models, started as a user starts them, from another folder."""

import subprocess
from pathlib import Path

import pytest

LAUNCH = Path(__file__).resolve().parents[2] / "launch"


@pytest.mark.parametrize(
    ("script", "arguments", "code", "message"),
    [
        ("parse", ["--model", "nowhere"], 2, "parse: model nowhere does not exist"),
        ("generate", ["--model", "nowhere"], 2, "generate: model nowhere does not exist"),
        ("surprisal", ["--model", "nowhere"], 2, "model nowhere does not exist"),
        ("evaluate", ["prplexity"], 2, "task 'prplexity' does not exist"),
        ("evaluate", ["perplexity", "--model", "x"], 2, "--data"),
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


def test_scripts_are_short_and_executable():
    for name in ("parse", "generate", "surprisal", "evaluate", "convert", "pretrain", "finetune"):
        script = LAUNCH / f"{name}.sh"
        assert script.stat().st_mode & 0o111
        assert len(script.read_text().splitlines()) < 60
