"""A run outlives its terminal: closed pipes, a closed terminal, and the end of the process."""

from __future__ import annotations

import errno
import io
import logging
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from pipeline.checkpoint.files import list_checkpoints
from pipeline.distributed.signals import StopRequest
from pipeline.monitor.metrics_file import read_metrics
from pipeline.terminal import outliving_the_terminal

ROOT = Path(__file__).parents[2]
PRETRAIN = ROOT / "launch" / "pretrain.sh"


@pytest.fixture
def hangups():
    """SIGHUP as a terminal's programs have it, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def closed_pipe(monkeypatch):
    """Standard output and error go to a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        yield stream


def test_nothing_that_writes_fails_on_a_closed_pipe(closed_pipe):
    with outliving_the_terminal():
        for _ in range(3):
            print("a line", flush=True)
            print("another", file=sys.stderr, flush=True)
            for _ in tqdm(range(2), file=sys.stderr):
                pass
            sys.stderr.writelines(["x\n"] * 5000)
            logging.StreamHandler(sys.stderr).emit(logging.makeLogRecord({"msg": "logged"}))
        os.write(sys.stderr.fileno(), b"a library's own line")
    closed_pipe.flush()  # as the interpreter does at its end


class Failing(io.StringIO):
    """A stream that cannot be written for a while."""

    number: int | None = errno.ENOSPC

    def write(self, text):
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(text)


def test_a_full_disk_costs_lines_and_not_the_run(monkeypatch):
    stream = Failing()
    monkeypatch.setattr(sys, "stdout", stream)
    with outliving_the_terminal():
        print("lost")
        stream.number = None
        print("there is space again")
    assert sys.stdout is stream
    assert stream.getvalue() == "there is space again\n"


def test_a_closed_terminal_is_a_wish_for_a_checkpoint(hangups):
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.requested
        assert stop.takes_save()
        assert not stop.takes_save()
        stop.launcher_is_gone()  # it had the same terminal
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "SIGTERM"
    with StopRequest() as stop:
        stop.launcher_is_gone()
        assert stop.reason == "the end of the deepspeed command"


def test_what_ignores_hangups_goes_on_ignoring_them(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.takes_save()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.dist
def test_a_run_whose_reader_has_gone_trains_to_its_end(
    toy_config, tmp_path, clean_environment, free_port
):
    """`bash launch/pretrain.sh ... 2>&1 | head -1`"""
    environ = clean_environment | {"LOCAL_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    environ["DEEPSPEED_ARGS"] = f"--master_port={free_port()}"
    with subprocess.Popen(
        ["bash", str(PRETRAIN), "--config", str(toy_config)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=600) == 0
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")][-1] == 8
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "step-000000008\n"


@pytest.mark.slow
@pytest.mark.dist
def test_a_run_whose_terminal_closes_saves_and_goes_on(
    toy_config, tmp_path, clean_environment, free_port, hangups
):
    """The terminal is a real one: closing it sends SIGHUP and makes every later write fail."""
    environ = clean_environment | {"LOCAL_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    environ["DEEPSPEED_ARGS"] = f"--master_port={free_port()}"
    overrides = ["checkpoint.every_steps=null", "train.num_steps=40"]
    terminal, child_end = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", "bash", PRETRAIN, "--config", toy_config, *overrides],
        env=environ,
        stdin=child_end,
        stdout=child_end,
        stderr=child_end,
    )
    os.close(child_end)
    run_dir = tmp_path / "run"
    try:
        while not read_metrics(run_dir / "metrics.jsonl"):
            assert process.poll() is None
            if select.select([terminal], [], [], 0.1)[0]:
                os.read(terminal, 1 << 16)
        os.close(terminal)
        process.wait(timeout=300)
    finally:
        process.kill()
    steps = [int(path.name[5:]) for path in list_checkpoints(run_dir / "checkpoints")]
    assert steps[-1] == 40
    assert len(steps) == 2  # the other one was saved when the terminal closed
    assert read_metrics(run_dir / "metrics.jsonl")[-1]["step"] == 40
