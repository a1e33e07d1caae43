"""The commands as processes: lines come when they are done; Ctrl-C; outputs that take no more."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpst.cli.commands import main
from gpst.cli.lines import Lines

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


@pytest.fixture
def piped(monkeypatch) -> Iterator[int]:
    """The end of a pipe whose other end is standard input."""
    read, write = os.pipe()
    with os.fdopen(read, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        yield write


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


@pytest.mark.parametrize("command", ["parse", "surprisal"])
def test_an_interruption_ends_what_waits_for_a_pipe(exported, start, command):
    with start(command, "--model", exported, "-", stdin=subprocess.PIPE) as process:
        process.stdin.write(b"The old man sailed.\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=300)  # the pipe is still open
        assert process.stderr.read() == f"{command}: interrupted\n".encode()
    assert process.returncode == 130


def test_what_stands_before_a_line_that_is_no_text_is_done(exported, tmp_path, start):
    """As it would be if the lines came one by one."""
    (tmp_path / "text").write_bytes(b"The man.\nThe man.\nThe man.\nno\0text\nThe man.\n")
    arguments = ("parse", "--model", exported, "--format", "bracket", tmp_path / "text")
    with start(*arguments) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, len(out.splitlines())) == (3, 3)
    assert b"line 4 holds a NUL character" in err


def test_an_error_ends_what_waits_for_a_pipe(exported, start):
    with start("parse", "--model", exported, "-", stdin=subprocess.PIPE) as process:
        process.stdin.write(b"no\0text\n")
        process.stdin.flush()
        process.wait(timeout=300)
        assert b"line 1 holds a NUL character" in process.stderr.read()
    assert process.returncode == 3


def test_pieces_of_lines_and_of_characters_come_together(piped, monkeypatch):
    real, num_reads = os.read, 0

    def read_byte(number, size):
        nonlocal num_reads
        num_reads += 1
        return real(number, 1)

    monkeypatch.setattr(os, "read", read_byte)
    data = "öne\r\ntwö\rthreé".encode()
    os.write(piped, data)
    os.close(piped)
    chunks = Lines("-", SimpleNamespace(sentence=lambda text: None), 4).chunks()
    assert [line.text for chunk in chunks for line in chunk] == ["öne", "twö", "threé"]
    assert num_reads == len(data) + 1


@pytest.mark.parametrize("ends", [True, False])
def test_a_signal_just_before_a_wait_is_heard(piped, monkeypatch, ends):
    """It comes after Python has looked for signals: no bytecode runs between it and the wait."""
    real, answers = select.select, []
    send = functools.partial(ctypes.CDLL(None)["raise"], signal.SIGINT)

    def select_after_signal(reads, writes, errors, *timeout):
        if timeout:  # it does not wait
            return real(reads, writes, errors, *timeout)
        if not answers:
            calls = (send, functools.partial(real, reads, writes, errors, 60))
            answers.extend(map(operator.call, calls))
            os.write(piped, b"one\n")
            return answers[1]
        return real(reads, writes, errors)

    before = signal.signal(signal.SIGINT, signal.default_int_handler if ends else lambda *_: None)
    monkeypatch.setattr(select, "select", select_after_signal)
    chunks = Lines("-", SimpleNamespace(sentence=lambda text: None), 4).chunks()
    try:
        with pytest.raises(KeyboardInterrupt) if ends else nullcontext():
            assert [line.text for line in next(chunks)] == ["one"]
    finally:
        signal.signal(signal.SIGINT, before)
        chunks.close()
    assert answers[1][0]  # it did not wait until its time was up
    assert signal.set_wakeup_fd(-1) == -1  # and nothing is left of it
    os.close(piped)


def test_what_has_come_through_a_pipe_is_a_chunk(piped):
    chunks = Lines("-", SimpleNamespace(sentence=lambda text: None), 4).chunks()
    numbers = []
    for text in (b"one\n", b"\n", b"three\n"):
        os.write(piped, text)
        [line] = next(chunks)  # although the next line is still to come
        assert line.text == text.decode().strip()
        numbers.append(line.number)
    os.write(piped, b"x\n" * 9 + b"last")
    os.close(piped)
    rest = list(chunks)
    numbers += [line.number for chunk in rest for line in chunk]
    assert numbers == list(range(1, 14))
    assert max(map(len, rest)) <= 4
    assert rest[-1][-1].text == "last"


def test_chunks_of_a_file_grow(tmp_path):
    (tmp_path / "in.txt").write_text("x\n" * 14)
    lines = Lines(str(tmp_path / "in.txt"), SimpleNamespace(sentence=lambda text: None), 4)
    assert [len(chunk) for chunk in lines.chunks()] == [1, 2, 4, 4, 3]
    assert lines.count() == 14


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line(exported, monkeypatch, capsys, tmp_path):
    (tmp_path / "in.txt").write_text("The old man sailed.\n")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = main(["parse", "--model", str(exported), str(tmp_path / "in.txt")])
    assert code == 1
    message = "parse: cannot write the output: No space left on device\n"
    assert capsys.readouterr().err == message


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


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        ("<&-", "standard input is closed; give a file, or text through a pipe"),
        (">&-", "standard output is closed; send it somewhere (> /dev/null)"),
    ],
)
@pytest.mark.parametrize("module", ["gpst", "pipeline"])
def test_a_closed_stream_is_one_line(tmp_path, make_export, closed, said, module):
    make_export(tmp_path / "model")
    script = f'exec "{sys.executable}" -W ignore -m {module} surprisal --model model - {closed}'
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        input=b"the man\n", capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (2, f"surprisal: {said}\n")
