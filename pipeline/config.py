"""The configuration of a run: frozen dataclasses < YAML file < key=value overrides.

    config = load_config("configs/run/demo.yaml", ["train.num_steps=50"])
    config = resolve_model(config, manifest)    # pipeline/resolve.py; then config.model_config

`num_*` is a count; `*_per_rank` and `global_*` say the scope; `*_tokens`, `*_contexts`, `*_steps`
say the unit. A *step* is an optimizer step, a *context* a packed row of whole sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from gpst.config import ModelConfig
from gpst.config import config_to_dict as model_to_dict
from pipeline.errors import ConfigError
from pipeline.strict import (
    build,
    parse_override,
    read_yaml,
    require,
    require_interval,
    require_number,
    set_dotted,
    to_plain,
)

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class DatasetConfig:
    """One of several datasets to mix."""

    path: str
    """Dataset directory made by `python -m data_prep build`."""
    weight: float = 1.0
    """Share of the contexts, relative to the other datasets' weights; > 0."""

    def __post_init__(self) -> None:
        require(0 < self.weight < float("inf"), "data.datasets weight", self.weight, "> 0")


@dataclass(frozen=True)
class DataConfig:
    """What is trained on: `path` for one dataset or `datasets` for a mixture."""

    path: str | None = None
    """Dataset directory, relative to the working directory."""
    datasets: tuple[DatasetConfig, ...] = ()
    """Datasets to mix by weight; they must share one tokenizer."""
    context_tokens: int = 1024
    """Most tokens in a context."""

    def __post_init__(self) -> None:
        require(self.context_tokens >= 2, "data.context_tokens", self.context_tokens, ">= 2")
        if (self.path is None) == (not self.datasets):
            raise ConfigError("data: give either data.path or data.datasets (exactly one of them)")

    @property
    def sources(self) -> tuple[DatasetConfig, ...]:
        """The datasets, one or many."""
        return self.datasets if self.path is None else (DatasetConfig(self.path),)


@dataclass(frozen=True)
class TrainConfig:
    """How long, and in what batches."""

    num_steps: int
    """Optimizer steps of the whole run; the schedules span them."""
    global_batch_contexts: int = 256
    """Contexts in an optimizer step over all ranks."""
    micro_batch_contexts_per_rank: int = 4
    """Contexts in one forward pass of a rank; bounds memory, changes no result."""
    stop_at_step: int | Literal["half"] | None = None
    """Save a checkpoint and end after this many steps, as a time limit would; half of num_steps
    by the word "half"."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 turns clipping off."""
    max_nonfinite_steps: int = 10
    """Steps in a row that may be skipped, because a loss or gradient is not finite, before the
    run stops."""

    def __post_init__(self) -> None:
        sizes = ("num_steps", "global_batch_contexts", "micro_batch_contexts_per_rank")
        for name in (*sizes, "max_nonfinite_steps"):
            require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), ">= 1")
        stop = self.stop_at_step
        ok = stop is None or stop == "half" or stop >= 1
        require(ok, "train.stop_at_step", stop, ">= 1 or null, or half")
        require_number("train.clip_norm", self.clip_norm, low=0.0)

    @property
    def last_step(self) -> int:
        """Steps after which this start of the run ends."""
        if self.stop_at_step == "half":
            return max(1, self.num_steps // 2)
        return min(self.num_steps, self.stop_at_step or self.num_steps)


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its learning rate (a function of the step: pipeline/schedule.py)."""

    learning_rate: float = 5e-5
    """Peak learning rate of everything but the parser."""
    parser_learning_rate: float = 1e-3
    """Peak learning rate of the top-down parser; GPT-2 has none."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Decoupled decay of matrices; norms, biases and embeddings have none."""
    warmup_fraction: float = 0.01
    """Share of the steps in which the rate rises linearly to its peak."""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """Shape of the rate after the warm-up."""
    final_fraction: float = 0.0
    """Rate at the end of the run, as a share of the peak."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "parser_learning_rate", "weight_decay"):
            require_number(f"optim.{name}", getattr(self, name), low=0.0)
        require(0 < self.eps < 1, "optim.eps", self.eps, "in (0, 1)")
        for beta in self.betas:
            require(0 <= beta < 1, "optim.betas", list(self.betas), "two numbers in [0, 1)")
        for name in ("warmup_fraction", "final_fraction"):
            require_number(f"optim.{name}", getattr(self, name), low=0.0, high=1.0)


@dataclass(frozen=True)
class StructureConfig:
    """Exploration of trees, linear in the step from start to end."""

    noise_start: float = 1.0
    """Coefficient of the Gumbel noise on the parser's boundary scores."""
    noise_end: float = 1.0
    temperature_start: float = 1.0
    """Temperature of the softmax over the splits of a cell; > 0."""
    temperature_end: float = 1.0

    def __post_init__(self) -> None:
        for name in ("noise_start", "noise_end"):
            require_number(f"structure.{name}", getattr(self, name), low=0.0)
        for name in ("temperature_start", "temperature_end"):
            value = getattr(self, name)
            require(0 < value < float("inf"), f"structure.{name}", value, "> 0")


@dataclass(frozen=True)
class EngineConfig:
    """DeepSpeed: how parameters and optimizer states lie in memory."""

    zero_stage: Literal[0, 1, 2] = 1
    """States split over the ranks: 0 none, 1 optimizer, 2 and gradients."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the forward and backward passes; master weights are fp32."""
    checkpointing: tuple[Literal["composition", "generator"], ...] = ()
    """Parts that recompute their activations in backward: less memory, more time."""
    offload_optimizer: bool = False
    """Keep optimizer states in the host's memory."""
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Further entries of the DeepSpeed config; they may not contradict the fields above."""

    def __post_init__(self) -> None:
        if self.precision == "bf16" and self.zero_stage == 0:
            raise ConfigError(
                "engine.zero_stage: 0 with engine.precision bf16 steps Adam wrongly in DeepSpeed; "
                "use engine.zero_stage 1"
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """When a run is saved and where it starts from."""

    every_steps: int | None = 1000
    """Steps between checkpoints; null saves at the end only."""
    keep_last: int = 2
    """Newest checkpoints to keep."""
    keep_every_steps: int | None = None
    """Also keep the checkpoints at multiples of this step for good."""
    resume: str = "auto"
    """auto: the newest whole checkpoint of run_dir if any; never; or a checkpoint's path."""

    def __post_init__(self) -> None:
        require_interval("checkpoint.every_steps", self.every_steps)
        require_interval("checkpoint.keep_every_steps", self.keep_every_steps)
        require(self.keep_last >= 1, "checkpoint.keep_last", self.keep_last, ">= 1")
        require(bool(self.resume), "checkpoint.resume", self.resume, "auto | never | a path")


@dataclass(frozen=True)
class MonitorConfig:
    """What is written while training."""

    log_every_steps: int = 10
    """Steps between lines of metrics.jsonl and points of TensorBoard."""
    sample_every_steps: int | None = None
    """Steps between trees of `sentences`; null never."""
    sentences: tuple[str, ...] = ()
    """Fixed sentences whose induced trees are watched."""

    def __post_init__(self) -> None:
        require_interval("monitor.log_every_steps", self.log_every_steps)
        require_interval("monitor.sample_every_steps", self.sample_every_steps)
        for sentence in self.sentences:
            require(bool(sentence.strip()), "monitor.sentences", sentence, "text, not blank")


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluation on held-out contexts while training."""

    every_steps: int | None = None
    """Steps between evaluations (and at the end of the run); null never."""
    max_contexts: int | None = 256
    """Contexts that are evaluated, chosen once; null takes all of them."""

    def __post_init__(self) -> None:
        require_interval("evaluate.every_steps", self.every_steps)
        require_interval("evaluate.max_contexts", self.max_contexts)


@dataclass(frozen=True)
class RunConfig:
    """Everything that defines a run."""

    run_dir: str
    """Folder for metrics, TensorBoard files and checkpoints."""
    model: dict[str, Any] | ModelConfig
    """Fields of the model; in YAML also the path of a file with them. `resolve_model` makes it
    the model's own configuration, complete with what follows from the dataset."""
    data: DataConfig
    train: TrainConfig
    seed: int = 0
    """Fixes initialisation, data order, dropout and noise."""
    optim: OptimConfig = OptimConfig()
    structure: StructureConfig = StructureConfig()
    engine: EngineConfig = EngineConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    monitor: MonitorConfig = MonitorConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    def __post_init__(self) -> None:
        require(bool(self.run_dir), "run_dir", self.run_dir, "a folder's path")
        require(0 <= self.seed < 1 << 63, "seed", self.seed, "in [0, 2**63)")

    @property
    def model_config(self) -> ModelConfig:
        """The model's configuration, once `resolve_model` has made it."""
        if isinstance(self.model, dict):
            raise RuntimeError("the run's model is not resolved yet: call resolve_model first")
        return self.model


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a YAML file, with `field=value` overrides in their order.

    A `model` given as a path is read here, so that `model.composition.num_layers=2` can follow.

    Raises:
        ConfigError: names the field, the value and what is allowed.
    """
    tree = read_yaml(Path(path))
    for text in overrides:
        parts, value = parse_override(text)
        if parts[0] == "model" and len(parts) > 1:
            _read_model(tree)
        set_dotted(tree, parts, value)
    _read_model(tree)
    return build(RunConfig, tree)


def config_from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `config_to_dict` wrote (in a checkpoint, say)."""
    tree = dict(values)
    _read_model(tree)
    return build(RunConfig, tree)


def _read_model(tree: dict[str, Any]) -> None:
    """Replaces a `model` that is a path by the fields in that file."""
    if not isinstance(tree.get("model"), str):
        return
    paths = [Path(tree["model"]), REPOSITORY / tree["model"]]
    for path in paths:
        if path.is_file():
            tree["model"] = read_yaml(path)
            return
    raise ConfigError(f"model: no file {paths[0]} in the working directory or in {REPOSITORY}")


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain dicts, lists and numbers, fit for YAML and JSON; `config_from_dict` reads it back."""
    plain = to_plain(config)
    if not isinstance(config.model, dict):
        plain["model"] = model_to_dict(config.model)
    return plain


def config_to_yaml(config: RunConfig) -> str:
    """What `--print-config` prints: a YAML file that `load_config` reads back."""
    return yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True)
