"""Saving and loading a run: DeepSpeed writes, checkpoint_files.py makes it safe.

All ranks write into one folder, which the machines of a run must share. Checkpoints are pickles
of torch and DeepSpeed: load only your own.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.checkpoint_files import (
    FOLDER,
    mark_best,
    newest_whole,
    publish,
    remove_leftovers,
    remove_old,
    set_aside,
    step_name,
    sync_files,
    verify,
    whole_checkpoint,
)
from pipeline.config import CheckpointConfig, EngineConfig
from pipeline.engine import Engine
from pipeline.errors import CheckpointError, ConfigError
from pipeline.state import TrainerState
from pipeline.world import World

_PREFIX = "model."
"""Of parameter names in DeepSpeed's files: engine.Objective holds the model."""


class Checkpoints:
    """The checkpoints of a run. Every method is called by all ranks alike."""

    def __init__(self, run_dir: str | Path, config: CheckpointConfig, world: World) -> None:
        self.folder = Path(run_dir) / FOLDER
        self._config, self._world = config, world
        self.last: Path | None = None
        """The whole checkpoint that was last saved or loaded."""

    def save(self, engine: Engine, state: TrainerState) -> Path:
        """Writes and publishes the checkpoint of `state`, then removes old ones.

        Raises:
            CheckpointError: it cannot be written; what was there before is untouched.
        """
        final = self.folder / step_name(state.step)
        if self.last == final:
            return final
        staging = self.folder / f".saving-{final.name}"
        with self._named_failure(final, staging):
            if self._world.is_main:
                self.folder.mkdir(parents=True, exist_ok=True)
                remove_leftovers(self.folder)
            self._world.barrier()
            # Ends with a barrier: after it, every rank's file is written.
            engine.raw.save_checkpoint(str(staging), tag=final.name, save_latest=False)
            if self._world.local_rank == 0:
                sync_files(staging / final.name)
            self._world.barrier()
            if self._world.is_main:
                _check_complete(staging / final.name, self._world.size, engine)
                publish(staging / final.name, final, state)
                shutil.rmtree(staging, ignore_errors=True)
                self._retain(state)
        self._world.barrier()
        self.last = final
        return final

    def _retain(self, state: TrainerState) -> None:
        """Names the best checkpoint and removes old ones, never the best."""
        best = [int(state.best["step"])] if state.best else []
        for step in best:
            mark_best(self.folder, step)
        config = self._config
        remove_old(self.folder, config.keep_last, config.keep_every_steps, best)

    def find(self) -> tuple[Path, TrainerState] | None:
        """The checkpoint to start from, by `checkpoint.resume`; None to start at step 0.

        Rank 0 looks and verifies; it says on standard error what it refused and why.
        """
        found = self._find() if self._world.is_main else None
        return self._world.broadcast(found)

    def _find(self) -> tuple[Path, TrainerState] | None:
        resume = self._config.resume
        if resume == "auto":
            return newest_whole(self.folder, _refuse)
        if resume == "never":
            check_no_checkpoints(self.folder)
            return None
        return whole_checkpoint(Path(resume))

    def load(self, engine: Engine, checkpoint: Path, universal: Path | None = None) -> None:
        """Restores parameters, moments and counters from a verified checkpoint.

        Args:
            universal: its form for another number of ranks (see `universal`), which is read then.

        Raises:
            CheckpointError: DeepSpeed cannot read it.
        """
        files = universal or checkpoint
        try:
            with _quiet():
                path, _ = engine.raw.load_checkpoint(str(files.parent), tag=files.name)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"checkpoint {checkpoint}: cannot be loaded: {reason}") from error
        if path is None:
            raise CheckpointError(f"checkpoint {checkpoint}: DeepSpeed finds no state in it")
        self.last = checkpoint

    def needs_conversion(self, saved: TrainerState, engine: EngineConfig) -> bool:
        """Whether the checkpoint must be converted to be loaded here.

        Raises:
            ConfigError: it cannot be.
        """
        then = saved.config["engine"]["zero_stage"]
        if (then == 0) != (engine.zero_stage == 0):
            raise ConfigError(
                f"engine.zero_stage: {engine.zero_stage}, but the checkpoint was written with "
                f"{then}; stages 1 and 2 can follow each other, stage 0 only itself"
            )
        other_layout = engine.precision == "bf16" and then != engine.zero_stage
        return then != 0 and (saved.world_size != self._world.size or other_layout)

    @contextmanager
    def universal(self, checkpoint: Path) -> Iterator[Path]:
        """The checkpoint in DeepSpeed's universal form, which any number of ranks can load.

        It is made beside the run's checkpoints and removed afterwards.
        """
        made = self.folder / f".universal-{checkpoint.name}"
        if self._world.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(made, ignore_errors=True)
            _convert_to_universal(checkpoint, made)
        self._world.barrier()
        yield made
        self._world.barrier()
        if self._world.is_main:
            shutil.rmtree(made, ignore_errors=True)

    @contextmanager
    def _named_failure(self, final: Path, staging: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:
            # torch reports a full disk as a RuntimeError of its zip writer.
            torch_writer = ("inline_container", "PytorchStreamWriter")
            if not isinstance(error, OSError) and not any(w in str(error) for w in torch_writer):
                raise
            shutil.rmtree(staging, ignore_errors=True)  # it may be what fills the disk
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"checkpoint {final} could not be written (is the disk full?): {reason}; earlier "
                "checkpoints are as they were, and the same command goes on from them"
            ) from error


def check_no_checkpoints(folder: Path) -> None:
    """Refuses `checkpoint.resume: never` where there is something to resume."""
    if folder.is_dir() and any(folder.glob("step-*")):
        raise ConfigError(
            f"checkpoint.resume: never, but {folder} holds checkpoints; set it to auto, give "
            "another run_dir, or remove the folder"
        )


def _refuse(checkpoint: Path, error: CheckpointError) -> None:
    aside = set_aside(checkpoint)
    print(f"pretrain: refused: {error} (kept as {aside.name})", file=sys.stderr, flush=True)


def _check_complete(folder: Path, world_size: int, engine: Engine) -> None:
    shards = len(list(folder.glob("*_optim_states.pt")))
    expected = world_size if engine.config.engine.zero_stage else 0
    if shards != expected:
        raise CheckpointError(
            f"checkpoint {folder.name}: {shards} of {expected} ranks wrote into {folder.parent}; "
            "run_dir must lie on a file system that all machines share"
        )


def _convert_to_universal(checkpoint: Path, made: Path) -> None:
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    command += ["--input_folder", str(checkpoint), "--output_folder", str(made)]
    command += ["--inject_missing_state", "--num_extract_workers", "1", "--num_merge_workers", "1"]
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckpointError(
            f"checkpoint {checkpoint}: cannot be converted for another number of ranks: {reason}; "
            "resume with as many ranks as wrote it"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """DeepSpeed prints progress while it loads."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


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
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # reading the files imports DeepSpeed
    model = _read(path / "mp_rank_00_model_states.pt")
    weights: dict[str, Tensor] = model["module"]
    shards = sorted(path.glob("*_optim_states.pt"), key=_shard_rank)
    if shards:
        # The module's own values may be bf16; the master weights lie with the optimizer.
        shapes = {n: shape for group in model["param_shapes"] for n, shape in group.items()}
        masters = _join_shards(shards)
        weights |= {name: masters[name].view(shape) for name, shape in shapes.items()}
        weights |= {name: weights[source] for name, source in model["shared_params"].items()}
    return state.config, {name.removeprefix(_PREFIX): value for name, value in weights.items()}


def _join_shards(shards: list[Path]) -> dict[str, Tensor]:
    """Parameter name -> its flat fp32 master, put together from its pieces on the ranks.

    DeepSpeed's zero_to_fp32 does not know the shards of its own bf16 optimizer (bf16, stage 1).
    """
    pieces: dict[str, list[Tensor]] = {}
    for shard in shards:
        optimizer = _read(shard)["optimizer_state_dict"]
        groups = optimizer["single_partition_of_fp32_groups"]
        for flat, mapping in zip(groups, optimizer["param_slice_mappings"], strict=True):
            for name, place in mapping.items():
                piece = flat.narrow(0, place.start, place.numel).float()
                pieces.setdefault(name, []).append(piece)
    return {name: torch.cat(parts) for name, parts in pieces.items()}


def _shard_rank(shard: Path) -> int:
    match = re.search(r"pp_rank_(\d+)_", shard.name)
    return int(match[1]) if match else 0


def _read(file: Path) -> dict[str, Any]:
    return torch.load(file, map_location="cpu", mmap=True, weights_only=False)


def read_state(checkpoint: str | Path) -> TrainerState:
    """The state in a checkpoint (or in a run's newest whole one), verified."""
    return verify(whole_checkpoint(Path(checkpoint))[0])
