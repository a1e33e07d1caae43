"""The engine and the state that a run starts with: fresh, or from its checkpoint."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from gpst.cli.threads import use_threads
from gpst.model.build import build_model
from pipeline.checkpoint.manager import Checkpoints, load_init_weights
from pipeline.checkpoint.start_point import forget_other_best
from pipeline.checkpoint.trainer_state import (
    TrainerState,
    changed_settings,
    check_same_run,
    first_state,
    resumed_state,
    unused_weights,
)
from pipeline.config.removed import removed_settings
from pipeline.config.run import ResolvedRun
from pipeline.distributed.world import World
from pipeline.engine.engine import Engine, create_engine
from pipeline.terminal import say
from pipeline.train.preflight import CheckedRun


def new_model(config: ResolvedRun) -> nn.Module:
    """The model that the run's config describes, with random weights."""
    return build_model(config.model)


def start(
    checked: CheckedRun,
    world: World,
    checkpoints: Checkpoints,
    build: Callable[[ResolvedRun], nn.Module],
) -> tuple[Engine, TrainerState]:
    """The engine and the state at step 0, or as the run's checkpoint has them.

    Settings that have changed since the checkpoint are printed.
    """
    config, fingerprint = checked.config, checked.source.fingerprint
    state = first_state(config, fingerprint, world.size)
    point = forget_other_best(checkpoints.find(), config.checkpoint)
    torch.manual_seed(config.seed)
    use_threads(config.model.hidden_dim, world.device)
    model = build(config)
    model.activation_checkpointing = set(config.engine.checkpointing)  # type: ignore[assignment]
    if point.checkpoint is None or point.state is None:
        if config.checkpoint.init_from is not None:
            tokenizer = checked.source.datasets[0].tokenizer_path
            load_init_weights(model, config.checkpoint.init_from, tokenizer)
        engine = create_engine(model, config, checked.batch_shape, world)
    else:
        check_same_run(point.state, config, fingerprint, point.checkpoint)
        if world.is_main:
            for line in _differences(checked, point.state, point.checkpoint, world.size):
                say(line)
        engine = create_engine(model, config, checked.batch_shape, world)
        checkpoints.load(engine, point.checkpoint, point.state)
        state = resumed_state(point.state, state)
    checkpoints.begin(point)
    return engine, state


def _differences(
    checked: CheckedRun, saved: TrainerState, checkpoint: Path, world_size: int
) -> list[str]:
    """A line for each kind of difference between the checkpoint and this run."""
    changed = changed_settings(saved, checked.config, world_size)
    lines = [f"changed since {checkpoint}: {'; '.join(changed)}"] if changed else []
    unused = unused_weights(saved, checked.config, checkpoint)
    lines += [unused] if unused is not None else []
    return lines + removed_settings(saved.config)
