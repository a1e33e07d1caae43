"""The commands as processes: text comes as it is written, Ctrl-C and readers that have enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def start(tmp_path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts a command in another folder; its output is a pipe."""

    def started(*arguments: object, **streams) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "gpst", *map(str, arguments)],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE, **({"stdout": subprocess.PIPE} | streams),
        )  # fmt: skip

    return started


def test_text_streams_and_an_interruption_is_one_line(tmp_path, make_export, start):
    make_export(tmp_path / "model", max_context_tokens=3000)
    given = ("--model", "model", "--prompt", "The man", "--max-new-tokens", 2900)
    with start("generate", *given) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 100)
        assert first.startswith(b"The man")
        assert process.poll() is None  # most is still to come
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, b"generate: interrupted\n")
    assert len(out) < 20_000


SLOW = (pytest.param(name, marks=pytest.mark.slow) for name in ("surprisal", "generate"))


@pytest.mark.parametrize("command", ["parse", *SLOW])
def test_a_reader_that_has_seen_enough_is_no_failure(exported, tmp_path, start, command):
    (tmp_path / "in.txt").write_text("The old man sailed.\n" * 40)
    given = ["--prompt", "The man"] if command == "generate" else ["in.txt", "--quiet"]
    read, write = os.pipe()
    os.close(read)
    with start(command, "--model", exported, *given, stdout=write) as process:
        os.close(write)
        _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, b"")
