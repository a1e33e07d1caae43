"""Commands that train, started as users start them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from pipeline.monitor.metrics_file import read_metrics


@pytest.fixture
def signalled(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """signalled(signal, command, environ) -> (exit code, stdout, stderr).

    The command trains into `tmp_path / "run"` and is started in "/"; it gets the signal when the
    first line of metrics is there, and what it leaves running is killed.
    """

    def start(
        number: signal.Signals, command: Sequence[object], environ: Mapping[str, str]
    ) -> tuple[int, str, str]:
        with subprocess.Popen(
            [*map(str, command)],
            env=environ,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                deadline = time.monotonic() + 150
                while not read_metrics(tmp_path / "run" / "metrics.jsonl"):
                    assert time.monotonic() < deadline
                    assert process.poll() is None, process.communicate()
                    time.sleep(0.05)
                process.send_signal(number)
                out, err = process.communicate(timeout=300)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, out, err

    return start


@pytest.fixture
def environ(clean_environment):
    """Two CPU ranks under deepspeed."""
    return clean_environment | {"LOCAL_SIZE": "2", "PYTHONPATH": ""}


@pytest.fixture
def run(environ, tmp_path):
    """run(*command) -> the finished process, started in a folder that is not the repository's."""

    def start(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*map(str, command)],
            env=environ | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return start


@pytest.fixture
def stand_in(environ, tmp_path):
    """stand_in(shell script) -> the PATH of a deepspeed that does only this."""

    def make(script: str) -> dict[str, str]:
        program = tmp_path / "bin" / "deepspeed"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return {"PATH": f"{program.parent}{os.pathsep}{environ['PATH']}"}

    return make
