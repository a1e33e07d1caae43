"""Fixtures for tests that train: a toy dataset, a run's config, and real ranks on the CPU."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from jaxtyping import install_import_hook
from rank_server import Fork, RankServer

# Shapes and types are checked at every call of these, before any is imported. Left out: what numba
# or Triton compiles; and layers, searches and the inner loops of the chart, where the checks would
# take as long as the work: tests/gpst/test_shapes.py checks those once.
_CHECKED = {
    "gpst": "batch",
    "gpst.model": "classifier generator gpst gpt2 losses output parser statistics",
    "gpst.chart": "atoms decode inside layout outside packing",
}
install_import_hook(
    [f"{package}.{name}" for package, names in _CHECKED.items() for name in names.split()],
    "shape_checks.checked",
)

if not torch.cuda.is_available():
    # Triton's kernels run in its interpreter; it has to know before it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests that run side by side share the cores.
SIDE_BY_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if SIDE_BY_SIDE > 1:
    torch.set_num_threads(max((os.cpu_count() or 1) // SIDE_BY_SIDE, 1))

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
VOCAB_SIZE = 64


def toy_documents(count: int, seed: int) -> list[list[list[int]]]:
    """Documents with something to learn; in every third one all sentences have one token."""
    random = np.random.default_rng(seed)
    documents = []
    for number in range(count):
        longest, sentences = (1, 64) if number % 3 == 0 else (9, 8)
        lengths = random.integers(1, longest + 1, size=sentences)
        starts = random.integers(1, VOCAB_SIZE, size=len(lengths))
        documents.append(
            [
                [int((start + 3 * i) % (VOCAB_SIZE - 1) + 1) for i in range(length)]
                for start, length in zip(starts, lengths, strict=True)
            ]
        )
    return documents


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start ranks come first: they are long, and would leave one process for the end."""
    long = {item.path for item in items if item.get_closest_marker("dist")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(scope="session")
def toy_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset directory of `VOCAB_SIZE` tokens w0, w1, ..., with held-out documents."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from data_prep.format.shard import write_dataset

    path = tmp_path_factory.mktemp("toy") / "dataset"
    write_dataset(path, toy_documents(60, 0), vocab_size=VOCAB_SIZE, validation=toy_documents(9, 1))
    vocabulary = {f"w{number}": number for number in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    (path / "tokenizer").mkdir()
    tokenizer.save(str(path / "tokenizer" / "tokenizer.json"))
    return path


@pytest.fixture(scope="session")
def toy_run(toy_dataset: Path) -> Callable[[Path], dict[str, Any]]:
    """toy_run(run_dir): the config, as plain values, of a run of seconds on the toy dataset."""
    sizes = {"dim": 16, "num_heads": 2, "ffn_dim": 32, "num_layers": 1}
    model = {
        "kind": "gpst",
        "max_context_tokens": 32,
        "hidden_dim": 32,
        "num_heads": 2,
        "ffn_dim": 64,
        "num_type_layers": 1,
        "num_token_layers": 1,
        "composition": {**sizes, "num_decomposition_layers": 1, "score_dim": 16},
        "parser": sizes,
    }
    run = {
        "model": model,
        "data": {"path": str(toy_dataset), "context_tokens": 32},
        "train": {"num_steps": 8, "global_batch_contexts": 8, "micro_batch_contexts_per_rank": 2},
        "optim": {"learning_rate": 0.01, "parser_learning_rate": 0.02, "weight_decay": 0.1},
        "checkpoint": {"every_steps": 2, "keep_last": 3},
        "monitor": {"log_every_steps": 1},
    }
    return lambda run_dir: deepcopy({"run_dir": str(run_dir), **run})


@pytest.fixture
def toy_config(tmp_path: Path, toy_run: Callable[[Path], dict[str, Any]]) -> Path:
    """The YAML file of `toy_run`, whose run_dir is `tmp_path / "run"`."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(toy_run(tmp_path / "run")))
    return path


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """free_port() -> a port that nobody listens on just now."""
    return _free_port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def clean_environment() -> dict[str, str]:
    """This environment without ranks, one thread a process, our own programs first."""
    environ = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES}
    environ["OMP_NUM_THREADS"] = "1"
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    return environ


@dataclass
class Ranks:
    """Processes of a script, started as its ranks."""

    processes: list[Fork]

    def finish(self, timeout_s: float = 600.0) -> list[tuple[int, str, str]]:
        """(exit code, stdout, stderr) of every rank, once all have ended."""
        deadline = time.monotonic() + timeout_s
        results = []
        for process in self.processes:
            out, err = process.communicate(timeout=deadline - time.monotonic())
            results.append((process.returncode, out, err))
        return results

    def signal(self, number: int, *ranks: int) -> None:
        """Sends a signal to the given ranks, or to all."""
        for rank in ranks or range(len(self.processes)):
            self.processes[rank].send_signal(number)

    def wait_for(self, happened: Callable[[], bool], timeout_s: float = 300.0) -> None:
        """Waits until something happened; fails when a rank ends before."""
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < deadline, "it did not happen in time"
            ended = [p for p in self.processes if p.poll() is not None]
            assert not ended, f"a rank ended: {ended[0].communicate()}"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    """Forks of one process, for all tests of a worker."""
    server = RankServer()
    yield server
    server.close()


@pytest.fixture
def start_ranks(
    clean_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Ranks]]:
    """start_ranks(2, script, *arguments) -> Ranks; what is left is killed afterwards."""
    started: list[Fork] = []
    files = tmp_path_factory.mktemp("ranks")

    def start(size: int, script: Path, *arguments: object) -> Ranks:
        server = request.getfixturevalue("rank_server")
        port = _free_port()
        ranks = []
        for rank in range(size):
            environ = clean_environment | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            name = files / str(len(started) + rank)
            ranks.append(server.start(script, [*map(str, arguments)], environ, name))
        started.extend(ranks)
        return Ranks(ranks)

    yield start
    for fork in started:
        fork.send_signal(signal.SIGKILL)
        fork.communicate()
