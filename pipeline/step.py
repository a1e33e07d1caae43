"""One optimizer step on one rank: its part of the global batch, forward, backward, update.

With a global batch of A actions, T tokens, ... the loss is the sum over terms of (sum of the term
over the *global* batch) / (its global count), whatever the ranks and micro-batches. Counts come
from the table of contexts, so no rank needs to ask another one.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gpst.batch import BatchCounts
from pipeline.config import RunConfig
from pipeline.data import ContextSource
from pipeline.engine import Engine, Update
from pipeline.resolve import BatchPlan
from pipeline.sampler import batch_samples, mix, step_samples
from pipeline.schedule import Scheduled, schedule
from pipeline.world import World


@dataclass
class Sums:
    """Sums of named terms over this rank's micro-batches, and what each is a mean over."""

    values: dict[str, Tensor] = field(default_factory=dict)
    per: dict[str, str] = field(default_factory=dict)

    def add(self, prefix: str, terms: dict[str, Any]) -> None:
        """Adds `LossTerm`s (a scalar `sum`, and the name of a count in `per`)."""
        for name, term in terms.items():
            key, value = prefix + name, term.sum.detach().double()
            self.values[key] = self.values[key] + value if key in self.values else value
            self.per[key] = term.per

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
        }

    def _perplexities(self, losses: dict[str, float]) -> dict[str, float]:
        """exp of the nats per token of the tokens, and per action of its type."""
        found = {}
        for name, unit in (("token", self.counts.tokens), ("type", self.counts.actions)):
            if f"loss/{name}" in losses:
                key = f"loss/{name}"
                # GPST's token loss is a mean over actions; its perplexity is one over tokens.
                nats = losses[key] * getattr(self.counts, self.sums.per[key])
                found[f"perplexity/{name}"] = _exp(nats / unit)
        return found


def _all_finite(values: dict[str, float]) -> bool:
    return all(math.isfinite(value) for value in values.values())


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 or math.isnan(nats) else math.inf


def micro_seed(seed: int, step: int, micro_step: int, rank: int) -> int:
    """Seed of dropout and noise in a micro-batch: a pure function, so nothing needs saving."""
    return mix(seed, step, micro_step, rank)


def take_step(
    engine: Engine,
    source: ContextSource,
    config: RunConfig,
    plan: BatchPlan,
    world: World,
    step: int,
) -> StepReport:
    """Optimizer step number `step` (from 0), this rank's share of it."""
    counts = source.counts(source.sample(config.seed, step_samples(step, plan.global_batch)))
    scheduled = schedule(config, step)
    engine.set_rates(scheduled.learning_rate, scheduled.parser_learning_rate)
    sums = Sums()
    update: Update | None = None
    for micro_step in range(plan.accumulation):
        samples = batch_samples(
            step,
            micro_step,
            rank=world.rank,
            world_size=world.size,
            micro_batch=plan.micro_batch,
            accumulation=plan.accumulation,
        )
        batch = source.batch(source.sample(config.seed, samples)).to(world.device)
        torch.manual_seed(micro_seed(config.seed, step, micro_step, world.rank))
        # DeepSpeed takes the mean over ranks and micro-steps; the counts already are global.
        scale = float(world.size * plan.accumulation)
        loss, output = engine.forward(batch, counts, scale, scheduled.noise, scheduled.temperature)
        sums.add("loss/", output.losses)
        sums.add("structure/", output.statistics)
        update = engine.backward(loss)
    assert update is not None  # the last micro-step updates
    return StepReport(step, counts, scheduled, update, sums)
