"""What `--dry-run` prints: a run in words, with its batch arithmetic and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.format.manifest import Manifest, TokenizerRecord
from gpst.batch import ContextBatch
from pipeline.config.batch_shape import BatchShape, batch_shape, resolve_model
from pipeline.config.deepspeed import check_deepspeed_entries
from pipeline.config.run import ResolvedRun, RunConfig
from pipeline.cost.activations import ASSUMED_SENTENCE_TOKENS, assumed_batch
from pipeline.cost.memory import (
    A100,
    STAGES,
    Device,
    ModelSize,
    RankMemory,
    checkpoint_bytes,
    device_here,
    model_size,
    rank_memory,
)
from pipeline.data.source import ContextSource
from pipeline.errors import ConfigError
from pipeline.quantities import GIB, MIB, counted, in_words
from pipeline.run_folder import CHECKPOINTS
from pipeline.train.preflight import check_run
from pipeline.train.schedule import num_warmup_steps

ASSUMED_VOCAB_SIZE = 30_522
"""Without a dataset and model.vocab_size: data_prep's default."""
_REFERENCE_RANKS = 8


@dataclass(frozen=True)
class DryRun:
    """A run that was checked as far as it can be here."""

    config: ResolvedRun
    batch_shape: BatchShape
    source: ContextSource | None
    """The data; None when it does not exist yet."""

    def describe(self) -> str:
        """The plan in words, for people."""
        size = model_size(self.config.model)
        lines = [*self._head(size), *self._memory_here(size), *self._memory_reference(size)]
        if self.source is None:
            lines += ["", *self._not_ready()]
        return "\n".join(lines)

    def _head(self, size: ModelSize) -> list[str]:
        config, train, optim = self.config, self.config.train, self.config.optim
        model, engine = config.model, config.engine
        warmup = num_warmup_steps(train.num_steps, optim.warmup_fraction)
        disk = checkpoint_bytes(config, size.parameters)
        return [
            f"model        {model.kind}, {size.parameters:,} parameters, vocabulary of "
            f"{model.vocab_size:,}",
            f"data         {self._data()}",
            f"batches      {self.batch_shape.describe()}",
            f"             {self._batches_in_words()}",
            f"steps        {self._steps()}",
            f"rate         {optim.learning_rate:g}"
            + (f", parser {optim.parser_learning_rate:g}" if model.kind == "gpst" else "")
            + f"; {warmup:,} steps of warm-up, then {optim.decay}",
            f"engine       ZeRO {engine.zero_stage}, {engine.precision}, recomputed: "
            f"{', '.join(engine.checkpointing) or 'nothing'}",
            f"checkpoints  {in_words(disk)} each, in {Path(config.run_dir) / CHECKPOINTS}",
        ]

    def _data(self) -> str:
        if self.source is None:
            paths = ", ".join(source.path for source in self.config.data.sources)
            return f"{paths}: not there yet"
        return (
            f"{self.source.num_contexts:,} contexts of at most {self.config.data.context_tokens} "
            f"tokens, {self.source.num_tokens:,} tokens"
        )

    def _batches_in_words(self) -> str:
        shape = self.batch_shape
        tokens = shape.global_batch * self.config.data.context_tokens
        who = "the rank goes" if shape.world_size == 1 else f"each of {shape.world_size} ranks goes"
        return (
            f"{who} forward and backward {counted(shape.accumulation, 'time')} on "
            f"{shape.micro_batch} contexts of at most {self.config.data.context_tokens} tokens, "
            f"then the weights are updated once: at most {tokens:,} tokens a step"
        )

    def _steps(self) -> str:
        train = self.config.train
        total = train.num_steps * train.global_batch_contexts
        if self.source is None:
            tokens = total * self.config.data.context_tokens
            return f"{train.num_steps:,}: at most {tokens:,} tokens"
        seen = total * self.source.num_tokens / self.source.num_contexts
        epochs = total / self.source.num_contexts
        return f"{train.num_steps:,}: about {seen:,.0f} tokens, {epochs:.2f} epochs"

    def _micro_batch(self, num_contexts: int) -> ContextBatch:
        """The run's first contexts, or assumed ones."""
        if self.source is None:
            return assumed_batch(num_contexts, self.config.data.context_tokens)
        numbers = [k % self.source.num_contexts for k in range(num_contexts)]
        return self.source.batch(numbers)

    def _memory_here(self, size: ModelSize) -> list[str]:
        ranks = self.batch_shape.world_size
        device = device_here(ranks)
        each = f"{device.name} with {in_words(device.num_bytes)} each"
        title = f"{counted(ranks, 'rank')} here, {each}"
        return self._memory(size, self.batch_shape, device, title)

    def _memory_reference(self, size: ModelSize) -> list[str]:
        title = f"{_REFERENCE_RANKS} x {A100.name}"
        try:
            shape = batch_shape(self.config, _REFERENCE_RANKS)
        except ConfigError as error:
            return ["", f"memory on {title}: {error}"]
        return self._memory(size, shape, A100, title)

    def _memory(self, size: ModelSize, shape: BatchShape, device: Device, title: str) -> list[str]:
        """A table by ZeRO stage, and what it means."""
        engine, ranks = self.config.engine, shape.world_size
        batch = self._micro_batch(shape.micro_batch)
        chosen = rank_memory(self.config, size, ranks, engine.zero_stage, batch, device.type)
        unit, unit_bytes = ("GiB", GIB) if chosen.total >= GIB else ("MiB", MIB)
        rows = []
        for stage in STAGES:
            mark = "*" if stage == engine.zero_stage else " "
            if stage == 0 and engine.precision != "fp32":
                rows.append(f"{mark} ZeRO 0  not with {engine.precision}")
                continue
            memory = rank_memory(self.config, size, ranks, stage, batch, device.type)
            rows.append(f"{mark} ZeRO {stage}{_row(memory, device, unit_bytes)}")
        header = "".join(f"{name:>12}" for name in _COLUMNS)
        return [
            "",
            f"memory on {title} ({shape.describe()}), {unit} a rank:",
            f"        {header}",
            *rows,
            *_bucket_words(chosen),
            self._verdict(size, shape, device, chosen),
        ]

    def _verdict(
        self, size: ModelSize, shape: BatchShape, device: Device, memory: RankMemory
    ) -> str:
        stage, ranks = self.config.engine.zero_stage, shape.world_size
        per_rank = shape.global_batch // ranks
        fitting = [
            n
            for n in range(1, per_rank + 1)
            if per_rank % n == 0 and self._fits(size, ranks, stage, n, device)
        ]
        host = f"; {in_words(memory.host)} of the host's memory a rank" if memory.host else ""
        if memory.total > device.usable:
            cure = (
                f"train.micro_batch_contexts_per_rank={fitting[-1]} would"
                if fitting
                else "no micro-batch would; try engine.checkpointing, a higher engine.zero_stage"
            )
            return f"does not fit ({in_words(device.usable)} are usable): {cure}{host}"
        most = fitting[-1]
        fastest = ", is the fastest" if device.type == "cuda" else ""
        words = (
            f"fits, {in_words(device.usable - memory.total)} to spare; the largest that fits, "
            f"{most} contexts ({most} x {per_rank // most} accumulated x {ranks}){fastest}: "
            f"train.micro_batch_contexts_per_rank={most}{host}"
        )
        if self.config.engine.checkpointing and self._fits(
            size, ranks, stage, shape.micro_batch, device, checkpointing=()
        ):
            words += "\nengine.checkpointing=[] fits, too: nothing is recomputed, which is faster"
        return words

    def _fits(
        self,
        size: ModelSize,
        ranks: int,
        stage: int,
        contexts: int,
        device: Device,
        checkpointing: tuple[str, ...] | None = None,
    ) -> bool:
        """Args: checkpointing: instead of the configuration's."""
        config = self.config
        if checkpointing is not None:
            config = replace(config, engine=replace(config.engine, checkpointing=checkpointing))
        batch = self._micro_batch(contexts)
        return rank_memory(config, size, ranks, stage, batch, device.type).total <= device.usable

    def _not_ready(self) -> list[str]:
        vocab_size = self.config.model.vocab_size
        return [
            "not ready    the dataset is not there: make it with python -m data_prep build",
            f"assumed      a vocabulary of {vocab_size:,} (model.vocab_size=N for another), "
            f"sentences of {ASSUMED_SENTENCE_TOKENS} tokens",
        ]


_COLUMNS = ("weights", "gradients", "optimizer", "buckets", "activations", "total")


def _row(memory: RankMemory, device: Device, unit_bytes: int) -> str:
    cells = [getattr(memory, name) / unit_bytes for name in _COLUMNS]
    over = "" if memory.total <= device.usable else "  too much"
    return "  " + "".join(f"{cell:>12.2f}" for cell in cells)[1:] + over


def _bucket_words(memory: RankMemory) -> list[str]:
    if not memory.buckets:
        return []
    return [
        f"buckets: {in_words(memory.buckets)} that DeepSpeed sends gradients in, whatever the "
        "model's size; engine.deepspeed={zero_optimization: {reduce_bucket_size: N}} for N numbers"
    ]


def check_dry_run(config: RunConfig, world_size: int) -> DryRun:
    """Checks all that can be checked; a missing dataset is no error.

    Raises:
        ConfigError, DataError, data_prep.errors.DataPrepError: what is wrong, in one line.
    """
    if all(Path(source.path).is_dir() for source in config.data.sources):
        checked = check_run(config, world_size)
        return DryRun(checked.config, checked.batch_shape, checked.source)
    shape = batch_shape(config, world_size)
    check_deepspeed_entries(config, shape)
    return DryRun(resolve_without_data(config), shape, None)


def resolve_without_data(config: RunConfig) -> ResolvedRun:
    """The run with its model's configuration, as if for a dataset that fits it."""
    vocab_size = config.model.get("vocab_size") or ASSUMED_VOCAB_SIZE
    tokenizer = TokenizerRecord("assumed", "byte_bpe", "", config.model.get("bos_token_id") or 0, 0)
    manifest = Manifest(vocab_size, "uint32", tokenizer, ())
    return resolve_model(config, manifest)
