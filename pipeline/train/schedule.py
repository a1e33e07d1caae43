"""Schedules: pure functions of the step, so that nothing of them needs saving."""

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.config.run import ResolvedRun


@dataclass(frozen=True)
class Scheduled:
    """What the schedules say for one optimizer step."""

    learning_rate: float
    parser_learning_rate: float
    noise: float
    """Coefficient of the parser's Gumbel noise."""
    temperature: float
    """Temperature of the softmax over the splits of a cell."""


def num_warmup_steps(num_steps: int, warmup_fraction: float) -> int:
    """Steps of the warm-up, rounded up."""
    # 0.07 * 100 is a little more than 7 in floating point; that is no reason for an 8th step.
    return math.ceil(round(warmup_fraction * num_steps, 6))


def learning_rate_factor(
    step: int,
    num_steps: int,
    *,
    warmup_fraction: float,
    decay: Literal["linear", "cosine", "constant"],
    final_fraction: float = 0.0,
) -> float:
    """Share of the peak learning rate that step `step` (from 0) is taken with.

    With w warm-up steps: (step + 1) / w before step w, so that no step is wasted at rate 0; then
    from 1 at step w down to `final_fraction`, which is reached just after the last step.
    """
    warmup = num_warmup_steps(num_steps, warmup_fraction)
    if step < warmup:
        return (step + 1) / warmup
    if decay == "constant" or num_steps == warmup:
        return 1.0
    progress = min(1.0, (step - warmup) / (num_steps - warmup))
    share = 1.0 - progress if decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return final_fraction + (1.0 - final_fraction) * share


def linear(start: float, end: float, step: int, num_steps: int) -> float:
    """`start` at step 0, `end` at the last step (num_steps - 1), straight in between."""
    progress = min(1.0, step / max(1, num_steps - 1))
    return start + (end - start) * progress


def schedule(config: ResolvedRun, step: int) -> Scheduled:
    """Learning rates, noise and temperature of step `step` (from 0)."""
    optim, structure, num_steps = config.optim, config.structure, config.train.num_steps
    factor = learning_rate_factor(
        step,
        num_steps,
        warmup_fraction=optim.warmup_fraction,
        decay=optim.decay,
        final_fraction=optim.final_fraction,
    )
    return Scheduled(
        learning_rate=optim.learning_rate * factor,
        parser_learning_rate=optim.parser_learning_rate * factor,
        noise=linear(structure.noise_start, structure.noise_end, step, num_steps),
        temperature=linear(structure.temperature_start, structure.temperature_end, step, num_steps),
    )
