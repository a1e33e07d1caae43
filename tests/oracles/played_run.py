"""A run of the trainer whose model is one number: everything else is real, and any step of it can
be killed or find the disk full.

Each start is a fork, so that a kill is a kill: no handler and no `finally` runs. The checkpoints,
lines, metrics and the loop are those of training; the engine, the step and the curves are not.
"""

from __future__ import annotations

import builtins
import errno
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pipeline.checkpoint import manager, trainer_state
from pipeline.config.run import load_config
from pipeline.distributed.signals import StopRequest
from pipeline.distributed.world import World
from pipeline.errors import CheckpointError, explain
from pipeline.monitor import monitor
from pipeline.run_folder import only_run
from pipeline.train import start as train_start
from pipeline.train import trainer
from pipeline.train.preflight import CheckedRun, check_run

MODEL_FILE = "mp_rank_00_model_states.pt"
KILLED = 137
_WRITES = ("mkdir", "link", "fsync", "open")
"""Operations that a full disk refuses."""


def next_weight(weight: int, step: int, tag: int) -> int:
    """The model after a step: a number that tells the whole history."""
    return (weight * 31 + step * 7 + tag) % 1_000_003


@dataclass(frozen=True)
class Start:
    """One start of the run."""

    to_step: int
    resume: str = "auto"
    ranks: int = 1
    tag: int = 1
    """Tells one training from another, as a learning rate would."""
    kill_at: int | None = None
    """The operation on files at which the process is killed."""
    full_at: int | None = None
    """The operation from which on the disk is full."""
    unreadable: tuple[str, ...] = ()
    """Files that cannot be read for now."""
    on_save_failure: str = "stop"


@dataclass(frozen=True)
class Seen:
    """What became of a start."""

    code: int
    err: str
    events: list[tuple[str, int, int]]
    """("start" | "step" | "saved", step, weight), in their order."""


class _Saved:
    def __init__(self, folder: Path) -> None:
        parts = [json.loads(path.read_bytes()) for path in sorted(folder.glob("*_states.pt"))]
        (self.weight,) = {part["weight"] for part in parts}


class _Engine:
    def __init__(self, config: Any, ranks: int) -> None:
        self.config, self.weight, self._ranks, self.model = config, 0, ranks, object()

    def save(self, folder: Path, name: str) -> None:
        files = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(self._ranks)]
        for file in (MODEL_FILE, *files):
            with open(folder / name / file, "w") as stream:
                stream.write(json.dumps({"weight": self.weight, "file": file}))

    def restore(self, saved: _Saved, steps: int) -> None:
        self.weight = saved.weight

    def close(self) -> None:
        pass


class _NextBatch:
    def __init__(self, *_: Any) -> None:
        pass

    def loss(self, engine: _Engine, step: int) -> float:
        return float(engine.weight)

    def check(self, engine: _Engine, step: int, saved: float | None, where: Path) -> None:
        if saved != float(engine.weight):
            raise CheckpointError(f"checkpoint {where}: another model")


class _Ranks(World):
    """Rank 0 of several; the others would say the same."""

    def __init__(self, size: int) -> None:
        self.rank, self.size, self.local_rank, self.is_main = 0, size, 0, True
        self.device, self.stop = torch.device("cpu"), StopRequest()

    def sum(self, values: Any) -> Any:
        return values

    def barrier(self) -> None:
        pass

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size


class _NoCurves:
    def __init__(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _no_model(_: Any) -> Any:
    return SimpleNamespace()


class Player:
    """Starts a run again and again in one folder."""

    def __init__(self, config_file: Path, run_dir: Path) -> None:
        config = load_config(config_file, [f"run_dir={run_dir}"])
        self._checked: CheckedRun = check_run(config, 1)
        self.run_dir = run_dir

    def start(self, wanted: Start) -> Seen:
        """Forks, trains, and tells what was seen."""
        reading, writing = os.pipe()
        log = self.run_dir.with_suffix(".err")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks beside threads
            child = os.fork()
        if child == 0:
            code = 99
            with suppress(BaseException):
                os.close(reading)
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(descriptor, 2)
                sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115
                code = self._play(wanted, lambda *event: _tell(writing, event))
                sys.stderr.flush()
            os._exit(code)
        os.close(writing)
        with open(reading) as stream:
            events = [tuple(json.loads(line)) for line in stream]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        err = log.read_text()
        assert code != 99, err
        return Seen(code, err, events)

    def _play(self, wanted: Start, tell: Callable[..., None]) -> int:
        plain = self._checked.config
        config = replace(
            plain,
            run_dir=str(self.run_dir),
            train=replace(plain.train, num_steps=1000, stop_at_step=wanted.to_step),
            optim=replace(plain.optim, learning_rate=wanted.tag / 1000),
            checkpoint=replace(
                plain.checkpoint,
                resume=wanted.resume,
                every_steps=3,
                keep_last=2,
                on_save_failure=wanted.on_save_failure,
            ),
            monitor=replace(plain.monitor, log_every_steps=1, peak_tflops_per_rank=1.0),
            data=replace(plain.data, prefetch_batches=0),
        )
        checked = replace(self._checked, config=config)
        _replace_the_model(wanted, tell)
        _disturb(wanted)
        try:
            with only_run(self.run_dir):
                return trainer.train(checked, _Ranks(wanted.ranks), _no_model).exit_code  # type: ignore[arg-type]
        except BaseException as error:
            line, code = explain(error) or (repr(error), 98)
            print(f"pretrain: {line}", file=sys.stderr, flush=True)
            if code == 98:
                import traceback

                traceback.print_exception(error)
            return code


def _tell(descriptor: int, event: tuple[Any, ...]) -> None:
    os.write(descriptor, (json.dumps(event) + "\n").encode())


def _replace_the_model(wanted: Start, tell: Callable[..., None]) -> None:
    def take_step(engine: _Engine, *arguments: Any, **_: Any) -> Any:
        step = arguments[2]
        engine.weight = next_weight(engine.weight, step, wanted.tag)
        tell("step", step + 1, engine.weight)
        loss = {"loss": float(engine.weight)}
        return SimpleNamespace(
            step=step,
            spike=None,
            update=SimpleNamespace(applied=True),
            counts=SimpleNamespace(tokens=10),
            spikes=SimpleNamespace(count=0),
            sums=SimpleNamespace(flops=0.0),
            metrics=lambda _: loss,
        )

    plain_save, plain_start = manager.Checkpoints.save, trainer.start

    def save(self: Any, engine: _Engine, at: Any) -> Path:
        tell("saving", at.step, engine.weight)
        path = plain_save(self, engine, at)  # type: ignore[arg-type]
        tell("saved", at.step, engine.weight)
        return path

    def start(*arguments: Any) -> Any:
        engine, at = plain_start(*arguments)
        tell("start", at.step, engine.weight)
        return engine, at

    plain_begin = manager.Checkpoints.begin

    def begin(self: Any, point: Any) -> None:
        tell("loaded", point.state.step if point.state else 0, 0)
        plain_begin(self, point)

    manager.Checkpoints.begin = begin
    manager.Checkpoints.save = save
    manager.SavedState = _Saved  # type: ignore[misc,assignment]
    trainer.start = start
    train_start.create_engine = lambda _m, config, _p, world: _Engine(config, world.size)
    trainer.NextBatchLoss = _NextBatch  # type: ignore[misc,assignment]
    trainer.take_step = take_step
    monitor.Curves = _NoCurves  # type: ignore[misc,assignment]
    trainer_state.git_revision = lambda _: ""


def _disturb(wanted: Start) -> None:
    """Counts operations on files; kills at one, or refuses from one on."""
    done = 0

    def about_to(name: str) -> None:
        nonlocal done
        done += 1
        if done == wanted.kill_at:
            os._exit(KILLED)
        if wanted.full_at is not None and done >= wanted.full_at and name in _WRITES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file")

    def counted(name: str) -> Callable[..., Any]:
        plain = getattr(os, name)

        def operation(*arguments: Any, **options: Any) -> Any:
            about_to(name)
            return plain(*arguments, **options)

        return operation

    for name in ("rename", "replace", "mkdir", "link", "unlink", "rmdir", "fsync"):
        setattr(os, name, counted(name))
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    plain_open = builtins.open

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if any(letter in mode for letter in "wax+"):
            about_to("open")
        elif str(file) in wanted.unreadable:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return plain_open(file, mode, *arguments, **options)

    builtins.open = opened  # type: ignore[assignment]
