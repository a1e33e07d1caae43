"""Killed at random moments, again and again, the result is that of an undisturbed run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from data_prep.__main__ import main

WORDS = ["Mr.", "Smith", "went", "to", "the", "U.S.", "in", "1999.", "He", "“No!”", "$3.50"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of 3 MB of text in 40 files."""
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(0)
    for number in range(40):
        lines = [" ".join(rng.choices(WORDS, k=60)) + "\n\n" for _ in range(260)]
        (folder / f"{number:02d}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def command(build_command):
    """The build of all these tests."""
    more = (
        "--split-blank-lines", "--unit-mib", "0.03", "--shard-tokens", "200k",
        "--validation-fraction", "0.1", "--deduplicate",
    )  # fmt: skip
    return lambda *given: build_command(*given, *more)


@pytest.fixture(scope="module")
def undisturbed(command, text, bpe_path, tmp_path_factory):
    """The result of a run that nobody kills."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    assert main(command(text, bpe_path, output, 1)[3:]) == 0
    return output


@pytest.fixture(scope="module")
def run_with_kills(start_build, workers_of):
    """Start it again and again, and SIGKILL the parent, a worker or all of them; let it end."""

    def kill(process, whom, rng):
        workers = [worker.pid for worker in workers_of(process)]
        children = psutil.Process(process.pid).children(recursive=True)
        victims = {"parent": [process.pid], "all": [process.pid, *(c.pid for c in children)]}.get(
            whom, [rng.choice(workers)] if workers else [process.pid]
        )
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    def run(arguments, output, whoms, rng):
        for whom in whoms:
            process = start_build(arguments, output)  # the work proper has begun
            time.sleep(rng.random() * 0.3)
            with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has finished
                kill(process, whom, rng)
            process.wait(timeout=900)
            if (output / "manifest.json").exists():
                shutil.rmtree(output)  # it was too quick: from the start again
        subprocess.run(arguments, check=True, capture_output=True)

    return run


def test_killed_parent_and_worker(
    command, start_build, workers_of, text, bpe_path, undisturbed, tmp_path, same_files
):
    """The short form: of two workers one, whose place another takes, then the parent."""
    output = tmp_path / "out"
    process = start_build(command(text, bpe_path, output, 2), output)
    done = output / ".work" / "units"
    with suppress(IndexError, psutil.NoSuchProcess):  # it has finished
        workers_of(process)[0].kill()
    begun = len(list(done.glob("*.done")))
    while process.poll() is None and len(list(done.glob("*.done"))) < begun + 4:
        time.sleep(0.002)  # the other one and the unit in hand are no four
    process.kill()
    assert process.wait() in (0, -signal.SIGKILL)
    assert main(command(text, bpe_path, output, 1)[3:]) == 0
    assert same_files(output, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_killed_twenty_times(
    command, run_with_kills, text, bpe_path, undisturbed, tmp_path, workers, same_files
):
    rng = random.Random(workers)
    output = tmp_path / "out"
    whoms = [rng.choice(["worker", "parent", "all"]) for _ in range(20)]
    run_with_kills(command(text, bpe_path, output, workers), output, whoms, rng)
    assert same_files(output, undisturbed)


@pytest.mark.slow  # test_orphans.py: stopped ones end, too
def test_workers_end_with_their_parent(command, start_build, text, bpe_path, tmp_path):
    output = tmp_path / "out"
    process = start_build(command(text, bpe_path, output, 2), output)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_mpi_gives_the_same(command, text, bpe_path, undisturbed, tmp_path, same_files):
    output = tmp_path / "out"
    mpirun = str(Path(sys.executable).parent / "mpirun")

    def build(folder):
        ranks = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        arguments = [*command(folder, bpe_path, output, 1), "--backend", "mpi"]
        return subprocess.run([*ranks, *arguments], capture_output=True, text=True)

    done = build(text)
    assert done.returncode == 0, done.stderr
    assert same_files(output, undisturbed)
    failed = build("/no/such/input")
    assert failed.returncode == 2
    assert "error: input /no/such/input does not exist" in failed.stderr
    assert "Traceback" not in failed.stderr
