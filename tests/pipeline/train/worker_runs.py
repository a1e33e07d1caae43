"""Starts of the pre-training command, one after another, some of them killed on the way.

    worker_runs.py EPISODES.json     prints a list of what became of each episode, as JSON

An episode is {"config": YAML, "ranks", "overrides", "record": a folder or null, "kill": [ranks],
"kill_after_s", "dies_in_step", "full_at_step", "full_rank"}: from the checkpoint of `full_at_step`
on, that rank finds the disk full; in `dies_in_step` all ranks kill themselves. Torch and DeepSpeed
are imported once and every rank is a fork. With "record", each rank appends {"step", "rank",
"rows"} to a file of its own after every step: the tokens of the contexts that it trained on.
"""

import errno
import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "oracles"))

from loaded import warm_up  # before torch  # isort: skip
import numpy as np
import torch

from pipeline.config.run import load_config
from pipeline.engine.engine import Engine
from pipeline.train import pretrain, trainer

FIRST_STEP_S = 90.0
"""Longest wait for the first step of an episode."""


def record_steps(file: Path, last_step: int | None) -> None:
    """Makes the training loop write down what it trained on, and die in `last_step`."""
    plain = trainer.take_step

    def take_step(engine, checked, world, step, batches, spikes):
        rows = []

        class Recording:
            def read(self, step, micro_step):
                batch = batches.read(step, micro_step)
                ends = batch.context_token_ends
                rows.extend(part.tolist() for part in np.split(batch.tokens.numpy(), ends[:-1]))
                return batch

        report = plain(engine, checked, world, step, Recording(), spikes)
        with open(file, "a") as stream:
            stream.write(json.dumps({"step": step, "rank": world.rank, "rows": rows}) + "\n")
        if step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)
        return report

    trainer.take_step = take_step


def fill_disk(first_step: int) -> None:
    """From this step's checkpoint on, this rank's files do not fit."""
    plain = Engine.save

    def save(self, folder, name):
        if int(name.rpartition("-")[2]) < first_step:
            return plain(self, folder, name)
        write = torch.save

        def full(*arguments, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

        torch.save = full
        try:
            return plain(self, folder, name)
        finally:
            torch.save = write

    Engine.save = save


def rank_main(episode: dict[str, Any], rank: int, port: int, folder: Path, trace: Path) -> int:
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT), stream)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(episode["ranks"]))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    record_steps(trace, episode.get("dies_in_step"))
    if episode.get("full_at_step") is not None and rank == episode["full_rank"]:
        fill_disk(episode["full_at_step"])
    return pretrain.main(["--config", episode["config"], *episode["overrides"]])


def start_rank(*arguments) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        code = rank_main(*arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def count_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def run(episode: dict[str, Any], folder: Path) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = episode["ranks"]
    record = episode.get("record")
    traces = [Path(record or folder) / f"steps-{size}-{rank}" for rank in range(size)]
    before = count_lines(traces[0])
    ranks = [start_rank(episode, rank, port, folder, traces[rank]) for rank in range(size)]
    saving = None
    if episode.get("kill"):
        deadline = time.monotonic() + FIRST_STEP_S
        while count_lines(traces[0]) <= before:
            assert time.monotonic() < deadline, (folder / "err-0").read_text()
            time.sleep(0.005)
        time.sleep(episode["kill_after_s"])
        run_dir = load_config(episode["config"], episode["overrides"]).run_dir
        saving = bool(list(Path(run_dir, "checkpoints").glob(".saving-*")))
        for rank in episode["kill"]:
            os.kill(ranks[rank], signal.SIGKILL)
    began = time.monotonic()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
    texts = {
        name: [(folder / f"{name}-{rank}").read_text() for rank in range(size)]
        for name in ("out", "err")
    }
    return {"codes": codes, **texts, "saving": saving, "seconds": time.monotonic() - began}


def main(episodes: list[dict[str, Any]]) -> None:
    if any("engine.zero_stage=3" in episode["overrides"] for episode in episodes):
        import transformers.models.gpt2.modeling_gpt2  # noqa: F401  # that stage imports it
    warm_up(episodes[0]["config"])
    found = []
    for episode in episodes:
        with tempfile.TemporaryDirectory() as folder:
            found.append(run(episode, Path(folder)))
    print(json.dumps(found))


main(json.loads(Path(sys.argv[1]).read_text()))
