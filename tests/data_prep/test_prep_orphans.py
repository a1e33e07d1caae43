"""What a killed build leaves running must not touch the next one, however slow the machine is."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from data_prep import lock
from data_prep.build import build
from data_prep.errors import UsageError
from data_prep.job import BuildArguments

ARGUMENTS = BuildArguments(source="text", validation_fraction=0.0, unit_bytes=700)


def command(corpus, tokenizer, output, workers):
    return [
        sys.executable, "-m", "data_prep", "build", "--source", "text", "--input", str(corpus),
        "--tokenizer", str(tokenizer), "--output", str(output), "--workers", str(workers),
        "--unit-mib", "0.0001",
    ]  # fmt: skip


def workers_of(process):
    children = psutil.Process(process.pid).children(recursive=True)
    return [c for c in children if "spawn_main" in " ".join(c.cmdline())]


def test_stopped_workers_of_a_killed_build(tmp_path, corpus, bpe_path):
    """A worker that is stopped (as on a starved machine) while its parent is killed goes, too."""
    output = tmp_path / "out"
    process = subprocess.Popen(
        command(corpus, bpe_path, output, 3), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    limit = time.monotonic() + 120
    while not list((output / ".work" / "units").glob("*.done")) and time.monotonic() < limit:
        time.sleep(0.002)
    stopped = workers_of(process)
    assert stopped
    for worker in stopped:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    try:
        _, alive = psutil.wait_procs(stopped, timeout=20)
    finally:
        for worker in stopped:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
    if sys.platform == "linux":
        assert not alive
    done = subprocess.run(command(corpus, bpe_path, output, 1), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(output.rglob("*.tmp"))


def test_a_build_waits_for_workers_of_an_earlier_one(tmp_path, corpus, bpe_path, monkeypatch):
    """While one of them holds its lock, the next build waits, then says so."""
    output = tmp_path / "out"
    (output / ".work").mkdir(parents=True)
    (output / ".work" / "workers").touch()
    with open(output / ".work" / "workers") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        monkeypatch.setattr(lock, "WAIT_S", 0.3)
        start = time.monotonic()
        with pytest.raises(UsageError, match="workers of an earlier build are still going"):
            build([str(corpus)], bpe_path, output, ARGUMENTS)
        assert time.monotonic() - start >= 0.3
    assert build([str(corpus)], bpe_path, output, ARGUMENTS).manifest.counters["documents"] == 12


def test_workers_hold_their_lock(tmp_path, corpus, bpe_path, monkeypatch):
    """In a worker process, from its first unit on."""
    output = tmp_path / "out"
    process = subprocess.Popen(
        command(corpus, bpe_path, output, 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    limit = time.monotonic() + 120
    while not list((output / ".work" / "units").glob("*.done")) and time.monotonic() < limit:
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)
    try:
        with open(output / ".work" / "workers") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=120) == 0
