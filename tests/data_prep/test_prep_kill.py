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

WORDS = [
    "Mr.",
    "Smith",
    "went",
    "to",
    "the",
    "U.S.",
    "in",
    "1999.",
    "He",
    "said:",
    "“No!”",
    "$3.50",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of 3 MB of text in 40 files."""
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(0)
    for number in range(40):
        lines = [" ".join(rng.choices(WORDS, k=60)) + "\n\n" for _ in range(260)]
        (folder / f"{number:02d}.txt").write_text("".join(lines))
    return folder


def command(text, tokenizer, output, workers):
    return [
        sys.executable, "-m", "data_prep", "build", "--source", "text", "--input", str(text),
        "--split-blank-lines", "--tokenizer", str(tokenizer), "--output", str(output),
        "--workers", str(workers), "--unit-mib", "0.03", "--shard-tokens", "200k",
        "--validation-fraction", "0.1", "--deduplicate",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(text, bpe_path, tmp_path_factory):
    """The result of a run that nobody kills."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    subprocess.run(command(text, bpe_path, output, 1), check=True, capture_output=True)
    return output


def kill(process: subprocess.Popen, whom: str, rng: random.Random) -> None:
    """SIGKILL the parent, one of its workers, or all of them."""
    children = psutil.Process(process.pid).children(recursive=True)
    workers = [c for c in children if "spawn_main" in " ".join(c.cmdline())]
    victims = {"parent": [process.pid], "all": [process.pid, *(c.pid for c in children)]}.get(
        whom, [rng.choice(workers).pid] if workers else [process.pid]
    )
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


def run_with_kills(arguments, output, whoms, rng):
    """Start it again and again, and kill somebody after a random while; then let it end."""
    for whom in whoms:
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        units = output / ".work" / "units"
        before = len(list(units.glob("*.done")))
        limit = time.monotonic() + 120
        while (  # the work proper has begun
            process.poll() is None
            and len(list(units.glob("*.done"))) == before
            and time.monotonic() < limit
        ):
            time.sleep(0.002)
        time.sleep(rng.random() * 0.3)
        with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has finished
            kill(process, whom, rng)
        process.wait(timeout=900)
        if (output / "manifest.json").exists():
            shutil.rmtree(output)  # it was too quick: from the start again
    subprocess.run(arguments, check=True, capture_output=True)


def test_killed_parent_and_worker(text, bpe_path, undisturbed, tmp_path, same_files):
    """The short form: a worker, the parent, all; with two workers."""
    output = tmp_path / "out"
    arguments = command(text, bpe_path, output, 2)
    run_with_kills(arguments, output, ["worker", "parent", "all"], random.Random(1))
    assert same_files(output, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_killed_twenty_times(text, bpe_path, undisturbed, tmp_path, workers, same_files):
    rng = random.Random(workers)
    output = tmp_path / "out"
    whoms = [rng.choice(["worker", "parent", "all"]) for _ in range(20)]
    run_with_kills(command(text, bpe_path, output, workers), output, whoms, rng)
    assert same_files(output, undisturbed)


def test_workers_end_with_their_parent(text, bpe_path, tmp_path):
    output = tmp_path / "out"
    process = subprocess.Popen(
        command(text, bpe_path, output, 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    limit = time.monotonic() + 60
    while not list((output / ".work" / "units").glob("*.done")) and time.monotonic() < limit:
        time.sleep(0.005)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_mpi_gives_the_same(text, bpe_path, undisturbed, tmp_path, same_files):
    pytest.importorskip("mpi4py")
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if mpirun is None:
        pytest.skip("no mpirun")
    output = tmp_path / "out"
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    launch = [mpirun, "--oversubscribe", "-n", "2"]
    arguments = command(text, bpe_path, output, 1)
    done = subprocess.run(
        [*launch, *arguments, "--backend", "mpi"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert same_files(output, undisturbed)
    wrong = [a if a != str(text) else "/no/such/input" for a in arguments]
    failed = subprocess.run(
        [*launch, *wrong, "--backend", "mpi"], capture_output=True, text=True, env=environment
    )
    assert failed.returncode == 2
    assert "error: input /no/such/input does not exist" in failed.stderr
    assert "Traceback" not in failed.stderr
