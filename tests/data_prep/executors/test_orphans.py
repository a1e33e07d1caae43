"""What a killed build leaves running must not touch the next one, however slow the machine is."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from data_prep.build.build import build
from data_prep.build.job import BuildArguments
from data_prep.errors import UsageError
from data_prep.executors.processes import ProcessesRunner
from data_prep.executors.window import PendingTasks, run_window
from data_prep.format import lock

ARGUMENTS = BuildArguments(source="text", validation_fraction=0.0, unit_bytes=700)


SMALL_UNITS = ("--unit-mib", "0.0001")


def test_stopped_workers_of_a_killed_build(
    tmp_path, corpus, bpe_path, build_command, start_build, workers_of
):
    """A worker that is stopped (as on a starved machine) while its parent is killed goes, too."""
    output = tmp_path / "out"
    process = start_build(build_command(corpus, bpe_path, output, 3, *SMALL_UNITS), output)
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
    again = build_command(corpus, bpe_path, output, 1, *SMALL_UNITS)
    done = subprocess.run(again, capture_output=True, text=True)
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


def test_workers_hold_their_lock(tmp_path, corpus, bpe_path, build_command, start_build):
    """In a worker process, from its first unit on."""
    output = tmp_path / "out"
    process = start_build(build_command(corpus, bpe_path, output, 2, *SMALL_UNITS), output)
    process.send_signal(signal.SIGSTOP)
    try:
        with open(output / ".work" / "workers") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=120) == 0


WAITS_ONCE = """
import pathlib, time
marker = pathlib.Path({marker!r})
if not marker.exists():
    marker.touch()
    time.sleep(20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_idle_workers_do_not_outlast_a_killed_one(tmp_path):
    """One is killed while it holds the lock of the pool's queue: the others wait for that lock, and
    leave SIGTERM to the parent. Waiting for them would never end.
    """
    runner = ProcessesRunner(3)
    results: list[None] = []
    wait = "import time; time.sleep(1.5)"  # long enough that each worker gets a task
    code = WAITS_ONCE.format(marker=str(tmp_path / "marker"))
    tasks = [(wait, {}), (wait, {}), (code, {})]
    thread = threading.Thread(target=lambda: results.extend(runner.run(exec, tasks)), daemon=True)
    thread.start()
    limit = time.monotonic() + 60
    places: dict[int, str] = {}
    while time.monotonic() < limit:
        workers = [c.pid for c in psutil.Process().children() if "spawn_main" in str(c.cmdline())]
        places = {pid: Path(f"/proc/{pid}/wchan").read_text() for pid in workers}
        kinds = sorted("pipe" in place for place in places.values())
        # one reads the queue, one waits for its lock, one works
        if kinds == [False, False, True] and "futex" in str(places) and "nanosleep" in str(places):
            break
        time.sleep(0.1)
    else:
        runner.close()
        pytest.skip("this kernel does not say where a process waits")
    os.kill(next(pid for pid, place in places.items() if "pipe" in place), signal.SIGKILL)
    thread.join(timeout=45)
    alive = thread.is_alive()
    for pid in places:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # so that nothing is left behind when this fails
    thread.join(timeout=30)
    runner.close()
    assert not alive
    assert len(results) == 3


class _BreaksAtSecond(Executor):
    """Does one task, then its workers are lost."""

    def __init__(self):
        self.count = 0

    def submit(self, fn, /, *args, **kwargs):
        self.count += 1
        if self.count == 2:
            raise BrokenProcessPool
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_no_task_is_lost_when_it_cannot_be_handed_over():
    waiting, running, executor = PendingTasks([(n,) for n in range(4)]), {}, _BreaksAtSecond()
    found = []
    with pytest.raises(BrokenProcessPool):
        found.extend(run_window(executor, 2, str, waiting, running))
    waiting.put_back(running.values())
    found.extend(run_window(executor, 2, str, waiting, {}))
    assert sorted(found) == ["0", "1", "2", "3"]
