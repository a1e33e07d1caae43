"""Pre-training: `deepspeed launch/pretrain.sh --config configs/run/NAME.yaml [key=value ...]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.config.run import RunConfig, config_to_yaml, load_config
from pipeline.train.command import TrainingCommand

if TYPE_CHECKING:
    from pipeline.distributed.world import World
    from pipeline.train.dry_run import DryRun
    from pipeline.train.preflight import Plan

# What takes seconds to import comes after the checks of the command line.


def _check(config: RunConfig, world_size: int) -> Plan:
    from pipeline.evaluate.treebank_probe import check_best_metric, open_treebank_probe
    from pipeline.train.preflight import check_run

    plan = check_run(config, world_size)
    check_best_metric(plan.config)
    open_treebank_probe(plan.config, plan.source)
    return plan


def _check_dry(config: RunConfig, world_size: int) -> DryRun:
    from pipeline.evaluate.treebank_probe import check_best_metric, open_treebank_probe
    from pipeline.train.dry_run import check_dry_run

    plan = check_dry_run(config, world_size)
    check_best_metric(plan.config)
    if plan.source is not None:
        open_treebank_probe(plan.config, plan.source)
    return plan


def _run(plan: Plan, world: World) -> int:
    from pipeline.evaluate.treebank_probe import open_treebank_probe
    from pipeline.train.run import train

    treebank = open_treebank_probe(plan.config, plan.source)
    return train(plan, world, evaluation=treebank and treebank.evaluate).exit_code


main = TrainingCommand(
    name="pretrain",
    description="Pre-trains a GPST or a GPT-2 baseline on a dataset of data_prep.",
    example="configs/run/demo.yaml",
    load=load_config,
    to_yaml=config_to_yaml,
    check=_check,
    run=_run,
    check_dry=_check_dry,
).main
