"""A run of the trainer on all ranks, from its checked plan: what every task that trains does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from data_prep.files import write_atomically
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
from pipeline.config.run import RunConfig, config_to_dict, config_to_yaml
from pipeline.cost.peak_flops import device_peak
from pipeline.distributed.world import World
from pipeline.engine.engine import Engine, create_engine
from pipeline.monitor.monitor import Monitor
from pipeline.terminal import say
from pipeline.train.agreement import check_ranks_agree
from pipeline.train.preflight import Plan
from pipeline.train.reload_check import NextBatchLoss
from pipeline.train.trainer import Outcome, TaskEvaluation, Trainer, print_summary


def new_model(config: RunConfig) -> nn.Module:
    """The model that the run's config describes, with random weights."""
    return build_model(config.model_config)


def train(
    plan: Plan,
    world: World,
    build: Callable[[RunConfig], nn.Module] = new_model,
    evaluation: TaskEvaluation | None = None,
    finish: Callable[[nn.Module, Outcome], None] | None = None,
) -> Outcome:
    """Trains, or goes on training, until the run ends or is stopped. All ranks call it.

    Args:
        build: makes the model, with the weights that a fresh run starts from.
        evaluation: see Trainer.
        finish: hears of the trained model before the engine is gone.
    """
    config, run_dir = plan.config, Path(plan.config.run_dir)
    checkpoints = Checkpoints(run_dir, config.checkpoint, world, NextBatchLoss(plan, world))
    engine, state = start(plan, world, checkpoints, build)
    if world.is_main:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(run_dir / "config.yaml", config_to_yaml(config).encode())
    peak = device_peak(world.device, config.engine.precision, config.monitor.peak_tflops_per_rank)
    monitor = Monitor(
        run_dir,
        num_steps=config.train.num_steps,
        is_main=world.is_main,
        start_step=state.step,
        start_tokens=state.tokens,
        config=config_to_dict(config),
        peak_flops=world.size * peak.flops_per_second,
        wandb=config.monitor.wandb,
    )
    with monitor:
        if state.step:
            monitor.say(f"resumed from {checkpoints.last} (step {state.step})")
        trainer = Trainer(plan, world, engine, checkpoints, monitor, state, evaluation)
        outcome = trainer.run()
    if world.is_main:
        print_summary(outcome, run_dir)
    if finish is not None:
        with engine.whole_model() as model:
            finish(model, outcome)
    engine.close()
    return outcome


def start(
    plan: Plan, world: World, checkpoints: Checkpoints, build: Callable[[RunConfig], nn.Module]
) -> tuple[Engine, TrainerState]:
    """The engine and the state at step 0, or as the run's checkpoint has them.

    Settings that have changed since the checkpoint are said.
    """
    config, fingerprint = plan.config, plan.source.fingerprint
    state = first_state(config, fingerprint, world.size)
    check_ranks_agree(world, config, fingerprint)
    found = forget_other_best(checkpoints.find(), config.checkpoint)
    torch.manual_seed(config.seed)
    model = build(config)
    model.checkpointing = set(config.engine.checkpointing)  # type: ignore[assignment]
    if found.checkpoint is None or found.state is None:
        if config.checkpoint.init_from is not None:
            tokenizer = plan.source.datasets[0].tokenizer_path
            load_init_weights(model, config.checkpoint.init_from, tokenizer)
        engine = create_engine(model, config, plan.batches, world)
    else:
        check_same_run(found.state, config, fingerprint, found.checkpoint)
        changed = changed_settings(found.state, config, world.size)
        if changed and world.is_main:
            say(f"changed since {found.checkpoint}: {'; '.join(changed)}")
        unused = unused_weights(found.state, config, found.checkpoint)
        if unused is not None and world.is_main:
            say(unused)
        for gone in removed_settings(found.state.config) if world.is_main else []:
            say(gone)
        engine = create_engine(model, config, plan.batches, world)
        checkpoints.load(engine, found.checkpoint, found.state)
        state = resumed_state(found.state, state)
    checkpoints.begin(found)
    return engine, state
