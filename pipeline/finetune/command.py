"""Fine-tuning: `deepspeed launch/finetune.sh --config configs/finetune/NAME.yaml init=MODEL ...`.

All kinds go through the one trainer: same engine, checkpoints, resume and monitoring as
pre-training. A kind is a FinetuneTask: examples, an evaluation after each epoch, final figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.train.command import TrainingCommand

if TYPE_CHECKING:
    from pipeline.distributed.world import World
    from pipeline.finetune.config import FinetuneConfig
    from pipeline.finetune.run import FinetunePlan

# What takes seconds to import is imported when it is needed.


def _load(path: str, overrides: Sequence[str]) -> FinetuneConfig:
    from pipeline.finetune.config import load_finetune_config

    return load_finetune_config(path, overrides)


def _to_yaml(config: FinetuneConfig) -> str:
    from pipeline.finetune.config import finetune_to_yaml

    return finetune_to_yaml(config)


def _check(config: FinetuneConfig, world_size: int) -> FinetunePlan:
    from pipeline.finetune.run import check_finetune

    return check_finetune(config, world_size)


def _run(plan: FinetunePlan, world: World) -> int:
    from pipeline.finetune.run import finetune

    return finetune(plan, world)


main = TrainingCommand(
    name="finetune",
    description="Fine-tunes a GPST or a GPT-2 baseline on GLUE, summarization or a treebank's "
    "words, with several seeds, and evaluates it.",
    example="configs/finetune/glue_cola.yaml",
    load=_load,
    to_yaml=_to_yaml,
    check=_check,
    check_dry=_check,
    run=_run,
).main
