"""One optimizer step on one rank: its part of the global batch, forward, backward, update.

With a global batch of A actions, T tokens, ... the loss is the sum over terms of (sum of the term
over the *global* batch) / (its global count), whatever the ranks and micro-batches. Counts come
from the table of contexts, so no rank needs to ask another one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gpst.batch import BatchCounts
from pipeline.config.run import ResolvedRun
from pipeline.cost.flops import batch_flops
from pipeline.data.order import mix, step_samples
from pipeline.data.prefetch import Batches, BatchReader
from pipeline.distributed.world import World
from pipeline.engine.engine import Engine, Update
from pipeline.train.loss_spike import LossAverage
from pipeline.train.preflight import CheckedRun
from pipeline.train.schedule import Scheduled, schedule


@dataclass
class Sums:
    """Sums of named terms over this rank's micro-batches, and what each is a mean over."""

    values: dict[str, Tensor] = field(default_factory=dict)
    per: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Of the micro-batches' charts (`ModelOutput.sizes`), summed."""
    flops: float = 0.0
    """Arithmetic of this rank (pipeline/cost/flops.py)."""

    def add(self, prefix: str, terms: dict[str, Any]) -> None:
        """Adds `LossTerm`s (a scalar `sum`, and the name of a count in `per`)."""
        for name, term in terms.items():
            key, value = prefix + name, term.sum.detach().double()
            self.values[key] = self.values[key] + value if key in self.values else value
            self.per[key] = term.per

    def add_sizes(self, sizes: Mapping[str, int]) -> None:
        """Adds the sizes of a micro-batch's chart."""
        for name, size in sizes.items():
            self.sizes[name] = self.sizes.get(name, 0) + size

    def means(self, counts: BatchCounts, world: World) -> dict[str, float]:
        """Means over the global batch; one all-reduce, so every rank must call it."""
        names = sorted(self.values)
        totals = world.sum(torch.stack([self.values[name] for name in names])).tolist()
        return {
            name: total / max(1, getattr(counts, self.per[name]))
            for name, total in zip(names, totals, strict=True)
        }


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step saw and did."""

    step: int
    """Number of the step, from 0."""
    counts: BatchCounts
    """Of the global batch."""
    scheduled: Scheduled
    update: Update
    sums: Sums
    spikes: LossAverage = field(default_factory=LossAverage)
    """The loss-spike guard's average after this step."""
    micro_batches: int = 1
    """Of each rank in the step."""
    spike: float | None = None
    """The loss, where it was a spike, for which the step was taken without an update."""

    def metrics(self, world: World) -> dict[str, float]:
        """The step's numbers by their names in metrics.jsonl; every rank must call it."""
        means = self.sums.means(self.counts, world)
        losses = {name: value for name, value in means.items() if name.startswith("loss/")}
        return {
            "loss": math.fsum(losses.values()) if _all_finite(losses) else math.nan,
            **means,
            **self._perplexities(losses),
            "learning_rate": self.scheduled.learning_rate,
            "parser_learning_rate": self.scheduled.parser_learning_rate,
            "noise": self.scheduled.noise,
            "temperature": self.scheduled.temperature,
            "gradient_norm": self.update.gradient_norm,
            **{f"structure/{name}": float(size) for name, size in self._chart(world).items()},
        }

    def why_skipped(self) -> str:
        """Why the step was taken without an update."""
        if self.spike is None:
            return "a loss or gradient is not finite"
        average = self.spikes
        distance = (self.spike - average.mean) / average.deviation
        return (
            f"the loss {self.spike:.4g} is {distance:.1f} deviations above its average "
            f"{average.mean:.4g}"
        )

    def _chart(self, world: World) -> dict[str, float]:
        """Mean levels of the micro-batches' charts; edges per token."""
        sizes = self.sums.sizes
        if not sizes:
            return {}
        names = sorted(sizes)
        of_all = torch.tensor([sizes[name] for name in names], dtype=torch.float64)
        totals = dict(zip(names, world.sum(of_all.to(world.device)).tolist(), strict=True))
        batches = world.size * self.micro_batches
        return {
            "levels": totals["levels"] / batches,
            "edges_per_token": totals["edges"] / self.counts.tokens,
        }

    def _perplexities(self, losses: dict[str, float]) -> dict[str, float]:
        """exp of the nats per token of the tokens, and per action of its type."""
        perplexities = {}
        for name, unit in (("token", self.counts.tokens), ("type", self.counts.actions)):
            if f"loss/{name}" in losses:
                key = f"loss/{name}"
                # GPST's token loss is a mean over actions; its perplexity is one over tokens.
                nats = losses[key] * getattr(self.counts, self.sums.per[key])
                perplexities[f"perplexity/{name}"] = _exp(nats / unit)
        return perplexities


def _all_finite(values: dict[str, float]) -> bool:
    return all(math.isfinite(value) for value in values.values())


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 or math.isnan(nats) else math.inf


def micro_seed(seed: int, step: int, micro_step: int, rank: int) -> int:
    """Seed of dropout and noise in a micro-batch: a pure function, so nothing needs saving."""
    return mix(seed, step, micro_step, rank)


def take_step(
    engine: Engine,
    checked: CheckedRun,
    world: World,
    step: int,
    batches: Batches | None = None,
    spikes: LossAverage | None = None,
) -> StepReport:
    """Optimizer step number `step` (from 0), this rank's share of it.

    Args:
        batches: where micro-batches come from; by default they are read when needed.
        spikes: the loss-spike guard's average of the steps before.
    """
    config, source, shape = checked.config, checked.source, checked.batch_shape
    counts = source.counts(source.sample(config.seed, step_samples(step, shape.global_batch)))
    scheduled = schedule(config, step)
    engine.set_rates(scheduled.learning_rate, scheduled.parser_learning_rate)
    batches = batches or BatchReader(source, config.seed, shape, world.rank, checked.phrase_edges)
    guard = _Guard(config, spikes or LossAverage(), world)
    sums = Sums()
    update: Update | None = None
    for micro_step in range(shape.accumulation):
        on_cpu = batches.read(step, micro_step)
        batch = on_cpu.to(world.device, non_blocking=True)
        torch.manual_seed(micro_seed(config.seed, step, micro_step, world.rank))
        # DeepSpeed takes the mean over ranks and micro-steps; the counts already are global.
        scale = float(world.size * shape.accumulation)
        loss, output = engine.forward(batch, counts, scale, scheduled.noise, scheduled.temperature)
        sums.add("loss/", output.losses)
        sums.add("structure/", output.statistics)
        sums.add_sizes(output.sizes)
        sums.flops += batch_flops(config.model, on_cpu, output.sizes).total
        guard.add(loss / scale)
        if micro_step == shape.accumulation - 1:
            loss = loss * guard.verdict()
        update = engine.backward(loss)
    assert update is not None  # the last micro-step updates
    return StepReport(
        step, counts, scheduled, update, sums, guard.average, shape.accumulation, guard.spike
    )


class _Guard:
    """The loss-spike guard in one step: the loss of all ranks, judged before the update."""

    def __init__(self, config: ResolvedRun, average: LossAverage, world: World) -> None:
        self._train, self._world = config.train, world
        self._loss: Tensor | None = None
        self.average = average
        self.spike: float | None = None

    def add(self, loss: Tensor) -> None:
        """Adds a micro-batch's share of the loss."""
        part = loss.detach().double()
        self._loss = part if self._loss is None else self._loss + part

    def verdict(self) -> float:
        """1, or NaN for a spike: gradients that are not finite are skipped, on all ranks alike.

        Every rank must call it, once, after the last forward pass.
        """
        deviations, window = self._train.spike_deviations, self._train.spike_window_steps
        if deviations is None:
            return 1.0
        assert self._loss is not None
        loss = float(self._world.sum(self._loss.clone()))
        if self.average.is_spike(loss, deviations, window):
            self.spike = loss
            return math.nan
        self.average = self.average.with_loss(loss, window)
        return 1.0
