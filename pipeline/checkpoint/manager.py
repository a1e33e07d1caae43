"""Saving and loading a run: DeepSpeed writes the files, files.py publishes them.

All ranks write into one folder, which the machines of a run must share. Checkpoints are pickles
of torch and DeepSpeed: load only those that you trust.
"""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from data_prep.files import write_atomically
from gpst.export.errors import ModelFolderError
from gpst.export.huggingface import open_model
from pipeline.checkpoint.files import (
    LATEST,
    SAVING,
    named_folder,
    publish,
    step_name,
    sync_files,
    whole_checkpoint,
)
from pipeline.checkpoint.lines import begin_line, complete_line, settle_best
from pipeline.checkpoint.retention import (
    finish_publishing,
    mark_best,
    remove_leftovers,
    remove_old,
    set_aside,
)
from pipeline.checkpoint.start_point import StartPoint, find_start
from pipeline.checkpoint.trainer_state import TrainerState, tokenizer_folder
from pipeline.config.sections import CheckpointConfig
from pipeline.data.source import tokens_differ
from pipeline.distributed.world import World
from pipeline.engine.engine import Engine
from pipeline.engine.saved_state import SavedState
from pipeline.errors import CheckpointError, ConfigError
from pipeline.run_folder import CHECKPOINTS

_PREFIX = "model."
"""Of parameter names in DeepSpeed's files: the model is an attribute of engine.Objective."""


class ReloadCheck(Protocol):
    """Tells whether what was loaded is the model that was saved (train/reload_check.py)."""

    def loss(self, engine: Engine, step: int) -> float | None:
        """What `check` will compare with; all ranks call it."""
        ...

    def check(self, engine: Engine, step: int, saved: float | None, checkpoint: Path) -> None:
        """Raises CheckpointError where it is another model."""
        ...


class Checkpoints:
    """The checkpoints of a run. Every method is called by all ranks alike."""

    def __init__(
        self, run_dir: str | Path, config: CheckpointConfig, world: World, reload_check: ReloadCheck
    ) -> None:
        self.folder = Path(run_dir) / CHECKPOINTS
        self._config, self._world, self._reload_check = config, world, reload_check
        self.last: Path | None = None
        """The whole checkpoint that was last saved or loaded."""

    def save(self, engine: Engine, state: TrainerState) -> Path:
        """Writes and publishes the checkpoint of `state`, then removes old ones.

        Raises:
            CheckpointError: it cannot be written, on any rank: raised on all of them; earlier
                checkpoints are untouched.
        """
        final = self.folder / step_name(state.step)
        if self.last == final:
            return final
        state = replace(state, next_loss=self._reload_check.loss(engine, state.step))
        staging = self.folder / f"{SAVING}{final.name}"
        staged, world = staging / final.name, self._world

        def make_room() -> None:
            if world.is_main:
                self.folder.mkdir(parents=True, exist_ok=True)
                remove_leftovers(self.folder)
                staged.mkdir(parents=True)

        def write() -> None:
            engine.save(staging, final.name)

        def sync() -> None:
            if world.local_rank == 0:
                sync_files(staged)

        def finish() -> None:
            if world.is_main:
                _check_complete(staged, world.size, engine)
                publish(staged, final, state)
                shutil.rmtree(staging, ignore_errors=True)
                if state.best_step is not None:
                    mark_best(self.folder, state.best_step)
                config = self._config
                remove_old(self.folder, config.keep_last, config.keep_every_steps, state.best_step)

        for action in (make_room, write, sync, finish):
            self._together(action, final, staging)
        self.last = final
        return final

    def _together(self, action: Callable[[], None], final: Path, staging: Path) -> None:
        """Runs a part of saving on all ranks; where it fails on one, it fails on all."""
        failure: str | None = None
        try:
            action()
        except CheckpointError as error:
            failure = str(error)
        except (OSError, RuntimeError) as error:
            # torch reports a full disk as a RuntimeError of its zip writer.
            torch_writer = ("inline_container", "PytorchStreamWriter")
            if not isinstance(error, OSError) and not any(w in str(error) for w in torch_writer):
                raise
            failure = " ".join(str(error).split())
        failures = self._world.gather(failure)
        failed = [(rank, text) for rank, text in enumerate(failures) if text is not None]
        if failed:
            if self._world.is_main:
                shutil.rmtree(staging, ignore_errors=True)  # it may be what fills the disk
            where = "" if self._world.size == 1 else f" by rank {failed[0][0]}"
            raise CheckpointError(
                f"checkpoint {final} could not be written{where} (is the disk full?): "
                f"{failed[0][1]}; earlier checkpoints are as they were"
            )

    def find(self) -> StartPoint:
        """Where to start, by `checkpoint.resume`; `begin` follows once that is loaded.

        Rank 0 looks and verifies. It changes nothing but to finish what a kill has interrupted.
        """
        start = StartPoint()
        if self._world.is_main:
            if self.folder.is_dir():
                finish_publishing(self.folder)
                self._say(complete_line(self.folder.parent))
            start = find_start(self.folder.parent, self._config.resume)
        return self._world.broadcast(start)

    def begin(self, start: StartPoint) -> None:
        """Sets aside refused checkpoints and an abandoned line.

        Called when the start's checkpoint is loaded: one that cannot be used changes nothing.

        Raises:
            CheckpointError: something cannot be renamed, raised on all ranks.
        """
        failure = None
        if self._world.is_main:
            try:
                self._begin(start)
            except (CheckpointError, OSError) as error:
                failure = str(error)
        failure = self._world.broadcast(failure)
        if failure is not None:
            raise CheckpointError(failure)

    def _begin(self, start: StartPoint) -> None:
        for checkpoint, reason in start.refused:
            self._say(f"refused: {reason} (kept as {set_aside(checkpoint).name})")
        if start.refused and start.checkpoint is not None:
            write_atomically(self.folder / LATEST, (start.checkpoint.name + "\n").encode())
        if start.line is not None:
            self._say(begin_line(self.folder.parent, start.line))
        elif start.state is not None and self.folder.is_dir():
            settle_best(self.folder, start.state.best_step)
        for message in start.messages:
            self._say(message)

    def _say(self, message: str | None) -> None:
        if message is not None:
            print(f"pretrain: {message}", file=sys.stderr, flush=True)

    def load(self, engine: Engine, checkpoint: Path, state: TrainerState) -> None:
        """Restores parameters, moments and counters from a verified checkpoint and its state.

        It may have been written by any ZeRO stage and any number of ranks.

        Raises:
            CheckpointError: its files cannot be read, or belong to another model.
        """
        engine.restore(SavedState(checkpoint), state.step)
        self._reload_check.check(engine, state.step, state.next_loss, checkpoint)
        self.last = checkpoint


def _check_complete(folder: Path, world_size: int, engine: Engine) -> None:
    shards = len(list(folder.glob("*_optim_states.pt")))
    expected = world_size if engine.config.engine.zero_stage else 0
    if shards != expected:
        raise CheckpointError(
            f"checkpoint {folder.name}: {shards} of {expected} ranks wrote into {folder.parent}; "
            "run_dir must lie on a file system that all machines share"
        )


def load_model_weights(checkpoint: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The run's config and the model's fp32 weights, from any ZeRO stage and number of ranks.

    Needs neither ranks nor a GPU. Tied weights share their storage, as in the model.

    Args:
        checkpoint: a checkpoint's folder, or a run's (its newest whole checkpoint).

    Returns:
        (config as `config_to_dict` writes it, state dict that the built model loads strictly).

    Raises:
        CheckpointError: there is none, or it is not whole.
    """
    path, state = whole_checkpoint(Path(checkpoint))
    return state.config, weights_in(path)


def weights_in(checkpoint: Path) -> dict[str, Tensor]:
    """The model's fp32 weights in the folder of a verified checkpoint, see `load_model_weights`."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # reading the files imports DeepSpeed
    weights = SavedState(checkpoint).weights()
    return {name.removeprefix(_PREFIX): value for name, value in weights}


def load_init_weights(model: nn.Module, source: str, tokenizer: Path | None = None) -> None:
    """Gives a model the weights of `checkpoint.init_from`.

    Args:
        source: folder of a checkpoint, a run or an exported model.
        tokenizer: folder of the tokenizer whose tokens the model is going to see.

    Raises:
        ConfigError: its model or tokenizer is another one. CheckpointError: it cannot be read.
    """
    folder = named_folder(source)
    try:
        if (folder / "config.json").is_file():
            source_tokenizer, weights = folder, open_model(folder).weights()
        else:
            config, weights = load_model_weights(source)
            source_tokenizer = tokenizer_folder(config)
    except ModelFolderError as error:
        raise CheckpointError(f"checkpoint.init_from: {error}") from None
    if tokenizer is not None and tokens_differ(source_tokenizer, tokenizer):
        raise ConfigError(
            f"checkpoint.init_from: {source} has another tokenizer ({source_tokenizer}) than the "
            f"data ({tokenizer}), so that its weights would be those of other tokens; build the "
            "data with its tokenizer, or leave checkpoint.init_from out"
        )
    wanted = {name: value.shape for name, value in model.state_dict().items()}
    shapes = {name: value.shape for name, value in weights.items()}
    if wanted != shapes:
        name = min(n for n in wanted.keys() | shapes.keys() if wanted.get(n) != shapes.get(n))
        here, there = (list(s) if (s := d.get(name)) else "none" for d in (wanted, shapes))
        raise ConfigError(
            f"checkpoint.init_from: {source} holds another model: {name} is {there} there and "
            f"{here} here; give the same `model`"
        )
    model.load_state_dict(weights)
