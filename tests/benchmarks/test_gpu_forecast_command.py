"""The command benchmarks/gpu_forecast.py: what it prints, and what it refuses in one line."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_forecast
import pytest
import torch
from forecast import report

HOME = Path(__file__).parents[2]
TINY = ["--contexts", "1", "--vocab-size", "64", "--config"]


def command(
    *arguments: str, cwd: Path | None = None, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": f"{HOME}{os.pathsep}{HOME / 'benchmarks'}"}
    return subprocess.run(
        [sys.executable, str(HOME / "benchmarks/gpu_forecast.py"), *arguments],
        cwd=cwd, stdout=stdout, stderr=subprocess.PIPE, text=True, env=os.environ | paths,
    )  # fmt: skip


def called(monkeypatch, *arguments: str) -> int:
    """The exit code of the command in this process."""
    monkeypatch.setattr(sys, "argv", ["gpu_forecast.py", *arguments])
    try:
        return gpu_forecast.main()
    except SystemExit as end:
        return int(end.code or 0)


def test_from_any_folder_a_table_and_json(tmp_path: Path) -> None:
    done = command(*TINY, "configs/model/gpst_tiny.yaml", "--top", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"kernels", "ratio_a100", "ratio_h100", "memory_ratio"} <= set(found)
    assert found["host_waits"] == 1
    assert found["host_waits_gpt2"] == 0
    assert done.stdout.count(" ms  ") >= 4  # the two lines of code, of each model


def test_the_default_model_is_found_from_any_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = gpu_forecast.command_parser().parse_args([]).config
    assert report.read_model_config(path, 64).hidden_dim == 768


def test_a_gpt2_is_forecast_alone(monkeypatch, capsys) -> None:
    assert called(monkeypatch, *TINY, "configs/model/gpt2_tiny.yaml") == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert lines[0].startswith("GPT-2 ")
    assert not any(line.startswith("GPST") for line in lines)
    assert found["kernels"] > 0
    assert found["peak_gib"] > 0
    assert found["host_waits"] == 0
    assert found["ratio_a100"] is found["ratio_h100"] is found["memory_ratio"] is None


def test_a_gpt2_is_measured_alone(monkeypatch, capsys) -> None:
    measured = []
    monkeypatch.setattr(report, "measured_ms", lambda *args: measured.append(args) or 2.0)
    assert called(monkeypatch, *TINY, "configs/model/gpt2_tiny.yaml", "--measure", "cpu") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["measured_ms"], found["measured_ratio"], len(measured)) == (2.0, None, 1)


FILES = {
    "broken.yaml": "kind: gpst\nhidden_dim: [1\n",
    "text.yaml": "only words\n",
    "empty.yaml": "",
    "unknown.yaml": "kind: gpst\nhidden_dimm: 64\n",
    "kind.yaml": "kind: gpt5\n",
}
REFUSED = [
    (["--config", "absent.yaml"], "absent.yaml: cannot be read"),
    (["--config", "."], "cannot be read"),
    (["--config", "broken.yaml"], "broken.yaml: not valid YAML"),
    (["--config", "broken.yaml"], "line 3"),
    (["--config", "text.yaml"], "text.yaml: holds no `field: value` lines"),
    (["--config", "empty.yaml"], "empty.yaml: is empty"),
    (["--config", "unknown.yaml"], "did you mean hidden_dim"),
    (["--config", "kind.yaml"], "kind: 'gpt5' is not allowed"),
    (["--config", "configs/run/demo.yaml"], "describes a run"),
    (["--config", "configs/model/gpt2_tiny.yaml", "--recompute", "composition"], "GPT-2"),
    (["--contexts", "0"], "--contexts: '0' is not allowed"),
    (["--contexts", "-3"], "--contexts: '-3' is not allowed"),
    (["--contexts", "many"], "--contexts: 'many' is not allowed"),
    (["--vocab-size", "0"], "--vocab-size: '0' is not allowed"),
    (["--vocab-size", "-5"], "--vocab-size: '-5' is not allowed"),
    (["--vocab-size", "1"], "--vocab-size: '1' is not allowed"),
    (["--vocab-size", "9" * 20], "is not allowed"),
    (["--top", "-1"], "--top: '-1' is not allowed"),
    (["--trees", "left"], "--trees"),
    (["--unheard-of"], "--unheard-of"),
]


@pytest.mark.parametrize(("arguments", "problem"), REFUSED)
def test_bad_input_is_one_line_and_wrong_usage(
    arguments: list[str], problem: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpu_forecast: ")
    assert problem in err
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_here_is_refused_before_the_forecast(monkeypatch, capsys) -> None:
    monkeypatch.setattr(report, "forecasts", lambda *_: pytest.fail("the forecast has begun"))
    assert called(monkeypatch, "--measure", "cuda") == 2
    assert capsys.readouterr().err.startswith("gpu_forecast: --measure cuda: ")


def test_an_output_that_cannot_be_written() -> None:
    with open("/dev/full", "w") as full:
        done = command(*TINY, "configs/model/gpt2_tiny.yaml", stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == "gpu_forecast: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "gpu_forecast: interrupted\n"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), 3, "2.00 GiB"),
    ],
)
def test_what_ends_it_is_one_line(
    error: BaseException, code: int, line: str, monkeypatch, capsys
) -> None:
    def fails(args: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr(gpu_forecast, "run", fails)
    assert called(monkeypatch) == code
    err = capsys.readouterr().err
    assert line in err
    assert len(err.splitlines()) == 1


def test_a_bug_keeps_its_traceback(monkeypatch) -> None:
    def fails(args: argparse.Namespace) -> None:
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr(gpu_forecast, "run", fails)
    with pytest.raises(RuntimeError, match="shape"):
        called(monkeypatch)
