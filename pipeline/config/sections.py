"""The sections of a run's configuration: frozen dataclasses, checked by gpst.config_reader.

`num_*` is a count; `*_per_rank` and `global_*` say the scope; `*_tokens`, `*_contexts`, `*_steps`
say the unit. A *step* is an optimizer step, a *context* a packed row of whole sentences.
"""

from dataclasses import dataclass, field
from math import lcm
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from gpst.config_reader import Count, Fraction, NonNegative, Positive, require
from pipeline.config.paths import PathText
from pipeline.errors import ConfigError


@dataclass(frozen=True)
class DatasetConfig:
    """One of several datasets to mix."""

    path: PathText
    """Dataset directory made by `python -m data_prep build`."""
    weight: float = 1.0
    """Share of the contexts, relative to the other datasets' weights; > 0."""

    def __post_init__(self) -> None:
        require(self.weight > 0, "data.datasets weight", self.weight, "> 0")


@dataclass(frozen=True)
class DataConfig:
    """What is trained on: `path` for one dataset or `datasets` for a mixture."""

    path: PathText | None = None
    """Dataset directory, relative to the working directory."""
    datasets: tuple[DatasetConfig, ...] = ()
    """Datasets to mix by weight; they must share one tokenizer."""
    context_tokens: Annotated[int, Ge(2)] = 1024
    """Most tokens in a context."""
    prefetch_batches: Annotated[int, Ge(0), Le(1024)] = 2
    """Micro-batches that a thread reads ahead; 0 reads each when it is needed. Changes no
    result."""

    def __post_init__(self) -> None:
        if (self.path is None) == (not self.datasets):
            raise ConfigError("data: give either data.path or data.datasets (exactly one of them)")

    @property
    def sources(self) -> tuple[DatasetConfig, ...]:
        """The datasets, one or many."""
        return self.datasets if self.path is None else (DatasetConfig(self.path),)


@dataclass(frozen=True)
class TrainConfig:
    """How long, and in what batches."""

    num_steps: Count
    """Optimizer steps of the whole run; the schedules span them."""
    global_batch_contexts: Count = 256
    """Contexts in an optimizer step over all ranks."""
    micro_batch_contexts_per_rank: Count = 4
    """Contexts in one forward pass of a rank: more are faster on a GPU, in more memory;
    results differ by rounding alone."""
    stop_at_step: int | Literal["half"] | None = None
    """Save a checkpoint and end after this many steps, as a time limit would; half of num_steps
    by the word "half"."""
    clip_norm: NonNegative = 1.0
    """Gradients are scaled down to this global norm; 0 turns clipping off."""
    max_nonfinite_steps: Count = 10
    """Steps in a row that may be skipped, because a loss or gradient is not finite or the loss
    spiked, before the run stops."""
    spike_deviations: Positive | None = None
    """A loss so many deviations above its moving average is a spike; null: nothing is."""
    spike_action: Literal["skip", "stop"] = "skip"
    """What becomes of a spike: the step is taken without an update, or the run is stopped."""
    spike_window_steps: Annotated[int, Ge(2)] = 100
    """Steps that the moving average looks back; in the first so many nothing is a spike."""

    def __post_init__(self) -> None:
        stop = self.stop_at_step
        ok = stop is None or stop == "half" or stop >= 1
        require(ok, "train.stop_at_step", stop, ">= 1 or null, or half")

    @property
    def last_step(self) -> int:
        """Steps after which this start of the run ends."""
        if self.stop_at_step == "half":
            return max(1, self.num_steps // 2)
        return min(self.num_steps, self.stop_at_step or self.num_steps)


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its learning rate (a function of the step: pipeline/train/schedule.py)."""

    learning_rate: NonNegative = 5e-5
    """Peak learning rate of everything but the parser."""
    parser_learning_rate: NonNegative = 1e-3
    """Peak learning rate of the top-down parser; GPT-2 has none."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Annotated[float, Gt(0), Lt(1)] = 1e-8
    weight_decay: NonNegative = 0.0
    """Decoupled decay of matrices; norms, biases and embeddings have none."""
    warmup_fraction: Fraction = 0.01
    """Share of the steps in which the rate rises linearly to its peak."""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """Shape of the rate after the warm-up."""
    final_fraction: Fraction = 0.0
    """Rate at the end of the run, as a share of the peak."""

    def __post_init__(self) -> None:
        for beta in self.betas:
            require(0 <= beta < 1, "optim.betas", list(self.betas), "two numbers in [0, 1)")


@dataclass(frozen=True)
class StructureConfig:
    """Where trees come from, and their exploration, linear in the step from start to end."""

    chart_order: Literal["parser", "punctuation"] = "parser"
    """Whose boundary scores order the chart in training: the parser's, as in the paper, or those of
    trees that where punctuation falls suggests (gpst/chart/phrase_edges.py), from which the parser
    then learns. With composition.window 1 the chart has these trees alone."""
    punctuation_data: PathText | None = None
    """Dataset whose punctuation is counted; null: the one that is trained on. Texts without
    punctuation, as a treebank's words, need it."""
    noise_start: NonNegative = 1.0
    """Coefficient of the Gumbel noise on the parser's boundary scores."""
    noise_end: NonNegative = 1.0
    temperature_start: Positive = 1.0
    """Temperature of the softmax over the splits of a cell; > 0."""
    temperature_end: Positive = 1.0

    def __post_init__(self) -> None:
        if self.punctuation_data is not None and self.chart_order != "punctuation":
            raise ConfigError(
                f"structure.punctuation_data: {self.punctuation_data!r} is given, and "
                f"structure.chart_order is {self.chart_order}: set it to punctuation"
            )


def _whole(value: Any) -> Any:
    if type(value) is not int:
        raise PydanticCustomError("not_whole", "not a whole number")
    return value


# Without more pydantic takes `true`, and 1.0, for the 1 of a Literal.
ZeroStage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_whole)]


@dataclass(frozen=True)
class EngineConfig:
    """DeepSpeed: how parameters and optimizer states lie in memory."""

    zero_stage: ZeroStage = 1
    """States split over the ranks: 0 none, 1 optimizer, 2 and gradients, 3 and the weights of the
    Transformer blocks."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the forward and backward passes; master weights are fp32. fp16 scales the loss
    and needs a GPU. There fp32 rounds the factors of products to TF32 (10 bits)."""
    checkpointing: tuple[Literal["composition", "generator"], ...] = ()
    """Parts that recompute their activations in backward: less memory, more time."""
    offload_optimizer: bool = False
    """Keep optimizer states in the host's memory."""
    deterministic: bool = False
    """On a GPU, sums in one order, so that a resumed run repeats bit for bit there, too; slower. A
    CPU does so anyway."""
    timeout_minutes: Positive = 10.0
    """Longest wait for another rank, in all process groups; DEEPSPEED_TIMEOUT (whole minutes) goes
    before. A rank that is silent for 40 s ends the run in any case."""
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Further entries of the DeepSpeed config; they may not contradict the fields above."""

    def __post_init__(self) -> None:
        if self.precision != "fp32" and self.zero_stage == 0:
            raise ConfigError(
                f"engine.zero_stage: 0 with engine.precision {self.precision} steps Adam wrongly "
                "in DeepSpeed; use engine.zero_stage 1"
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """When a run is saved and where it starts from."""

    every_steps: Count | None = 1000
    """Steps between checkpoints; null saves at the end only."""
    keep_last: Count = 2
    """Newest checkpoints to keep."""
    keep_every_steps: Count | None = None
    """Also keep the checkpoints at multiples of this step for good."""
    best_metric: str | None = None
    """Metric of the held-out evaluation, e.g. eval/perplexity/token: a checkpoint is saved at each
    evaluation that is the best so far, and is kept until there is a better one."""
    best_is: Literal["lowest", "highest"] = "lowest"
    """Which value of best_metric is the best."""
    resume: PathText = "auto"
    """auto: what `latest` names in run_dir, or the newest whole checkpoint; never: step 0, refused
    where there are checkpoints; none: step 0, what is there is set aside; or a checkpoint's path: a
    new line begins there, and the same command again goes on with it (docs/soak.md)."""
    init_from: PathText | None = None
    """Weights to start from when there is nothing to resume: a checkpoint, a run, or an exported
    model, of the same model. Optimizer, step and data order start anew."""
    on_save_failure: Literal["stop", "continue"] = "stop"
    """What a checkpoint that cannot be written (a full disk) does; continue tries again when the
    next one is due. The last checkpoint of a run must succeed."""

    def __post_init__(self) -> None:
        require(bool(self.resume), "checkpoint.resume", self.resume, "auto | never | none | a path")
        require(self.init_from != "", "checkpoint.init_from", self.init_from, "a path, or null")
        every, keep = self.every_steps, self.keep_every_steps
        if every is not None and keep is not None and keep % every and every % keep:
            raise ConfigError(
                f"checkpoint.keep_every_steps: {keep} is no multiple of checkpoint.every_steps "
                f"{every}, so that only each {lcm(keep, every)}th step's would be kept; give a "
                "multiple, or null"
            )

    @property
    def best_by(self) -> str:
        """What makes a checkpoint the best: "lowest eval/perplexity/token"."""
        return f"{self.best_is} {self.best_metric}"


@dataclass(frozen=True)
class MonitorConfig:
    """What is written while training."""

    log_every_steps: Count = 10
    """Steps between lines of metrics.jsonl and points of TensorBoard."""
    sample_every_steps: Count | None = None
    """Steps between trees of `sentences`; null never."""
    sentences: tuple[str, ...] = ()
    """Fixed sentences whose induced trees are watched."""
    prompts: tuple[str, ...] = ()
    """Beginnings that the model continues at the same steps; "" is the start of a text."""
    continuation_tokens: Count = 32
    """Tokens of each continuation."""
    peak_tflops_per_rank: Positive | None = None
    """TFLOP/s that count as 100% in the MFU; null: those of the GPU's data sheet, or else those
    that a large matrix product reaches at the start."""
    wandb: str | None = None
    """Weights & Biases project that gets the same numbers (pip install wandb); null: none."""

    def __post_init__(self) -> None:
        require(self.wandb != "", "monitor.wandb", self.wandb, "a project's name, or null")
        for sentence in self.sentences:
            require(bool(sentence.strip()), "monitor.sentences", sentence, "text, not blank")


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluation on held-out contexts while training."""

    every_steps: Count | None = None
    """Steps between evaluations (and at the end of the run); null never."""
    max_contexts: Count | None = 256
    """Contexts that are evaluated, chosen once; null takes all of them."""
    treebank: PathText | None = None
    """Gold trees (a tree a line, or a folder of .mrg or .ptb files) whose spans the induced trees
    are scored against: eval/f1; null: none."""
