"""The configuration of a fine-tuning: dataclass defaults < YAML < key=value.

A section says what is learned: `glue`, `summarization`, ... (registry.py). A *context* is one
example here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpst.config import config_to_dict as model_to_dict
from gpst.config_reader import Count, NonNegative, build, require
from pipeline.config import yaml_text
from pipeline.config.overrides import parse_override, set_dotted, to_plain
from pipeline.config.paths import PathText
from pipeline.config.removed import refuse_removed
from pipeline.config.run import RunConfig, read_config
from pipeline.config.sections import (
    CheckpointConfig,
    DataConfig,
    EngineConfig,
    EvaluateConfig,
    MonitorConfig,
    OptimConfig,
    StructureConfig,
    TrainConfig,
)
from pipeline.errors import ConfigError
from pipeline.evaluate.load_model import StoredModel
from pipeline.finetune.glue.config import GlueConfig
from pipeline.finetune.grammar_induction.config import GrammarInductionConfig
from pipeline.finetune.registry import task_sections
from pipeline.finetune.summarization.config import SummarizationConfig
from pipeline.monitor.metrics import SCORE


@dataclass(frozen=True)
class FinetuneTrainConfig:
    """How long, and in what batches."""

    num_epochs: Count
    """Passes over the training examples; after each the model is evaluated and saved."""
    global_batch_contexts: Count
    """Examples in an optimizer step over all ranks."""
    micro_batch_contexts_per_rank: Count = 4
    """Examples in one forward pass of a rank: more are faster on a GPU, in more memory;
    results differ by rounding alone."""
    stop_at_step: Count | None = None
    """Save a checkpoint and end after this many steps, as a time limit would."""
    clip_norm: NonNegative = 1.0
    """Gradients are scaled down to this global norm; 0 turns clipping off."""

    def steps_per_epoch(self, num_examples: int) -> int:
        """Optimizer steps in which every example is seen; the last one begins the next pass."""
        return -(-num_examples // self.global_batch_contexts)


@dataclass(frozen=True)
class FinetuneConfig:
    """Everything that defines a fine-tuning, for all its seeds."""

    run_dir: PathText
    """Folder of the results, with a run for each seed in it: seed-0, ..."""
    train: FinetuneTrainConfig
    init: PathText | None = None
    """The model to start from: an exported model's folder, a run's or a checkpoint's."""
    seeds: tuple[int, ...] = (0,)
    """One run each; they fix the new layers' weights, data order, dropout and noise."""
    glue: GlueConfig | None = None
    summarization: SummarizationConfig | None = None
    grammar_induction: GrammarInductionConfig | None = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    structure: StructureConfig = field(default_factory=StructureConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)

    def __post_init__(self) -> None:
        require(bool(self.run_dir), "run_dir", self.run_dir, "a folder's path")
        if self.init is None:
            raise ConfigError(
                "init is missing: give the model to start from, e.g. init=runs/NAME/exported"
            )
        require(bool(self.seeds), "seeds", list(self.seeds), "a list of one number or more")
        for seed in self.seeds:
            require(0 <= seed < 1 << 63, "seeds", list(self.seeds), "numbers in [0, 2**63)")
        repeated = len(set(self.seeds)) != len(self.seeds)
        require(not repeated, "seeds", list(self.seeds), "different numbers")
        if len(self.sections) != 1:
            *names, last = task_sections(type(self))
            raise ConfigError(
                f"the task: give one of the sections {', '.join(names)} and {last}; "
                f"there is {' and '.join(self.sections) or 'none'}"
            )
        if self.engine.zero_stage == 3:
            raise ConfigError("engine.zero_stage: 3 is not for fine-tuning; use 0, 1 or 2")

    @property
    def sections(self) -> dict[str, Any]:
        """The sections of tasks that are not null; a checked configuration has one."""
        sections = {name: getattr(self, name) for name in task_sections(type(self))}
        return {name: section for name, section in sections.items() if section is not None}

    @property
    def task(self) -> str:
        """The section that says what is learned."""
        return next(iter(self.sections))

    @property
    def data_folder(self) -> Path:
        """Where the prepared examples lie, for all seeds."""
        return Path(self.run_dir) / "examples"

    def seed_folder(self, seed: int) -> Path:
        """The run of a seed."""
        return Path(self.run_dir) / f"seed-{seed}"


def load_finetune_config(path: str | Path, overrides: Sequence[str] = ()) -> FinetuneConfig:
    """The configuration in a YAML file, with `field=value` overrides in their order.

    Raises:
        ConfigError: names the field, the value and what is allowed.
    """
    tree = read_config(path, FinetuneConfig)
    for text in overrides:
        set_dotted(tree, *parse_override(text))
    return build(FinetuneConfig, refuse_removed(tree))


def finetune_to_yaml(config: FinetuneConfig) -> str:
    """What `--print-config` prints."""
    plain = {name: value for name, value in to_plain(config).items() if value is not None}
    return yaml_text.write(plain)


def run_config(
    config: FinetuneConfig, stored: StoredModel, num_examples: int, seed: int, selects: bool
) -> RunConfig:
    """The trainer's configuration of one seed.

    Args:
        selects: the evaluation after an epoch gives a score, and the best epoch counts.
    """
    train, per_epoch = config.train, config.train.steps_per_epoch(num_examples)
    checkpoint = CheckpointConfig(
        every_steps=per_epoch,
        keep_last=1,
        best_metric=SCORE if selects else None,
        best_is="highest",
    )
    return RunConfig(
        run_dir=str(config.seed_folder(seed)),
        model=model_to_dict(stored.config),
        data=DataConfig(
            path=str(config.data_folder), context_tokens=stored.config.max_context_tokens
        ),
        train=TrainConfig(
            num_steps=train.num_epochs * per_epoch,
            global_batch_contexts=train.global_batch_contexts,
            micro_batch_contexts_per_rank=train.micro_batch_contexts_per_rank,
            stop_at_step=train.stop_at_step,
            clip_norm=train.clip_norm,
        ),
        seed=seed,
        optim=config.optim,
        structure=config.structure,
        engine=config.engine,
        checkpoint=checkpoint,
        monitor=config.monitor,
        evaluate=EvaluateConfig(every_steps=per_epoch, max_contexts=None),
    )
