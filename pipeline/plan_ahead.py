"""Micro-batches whose charts are planned by a thread while the one before is computed.

The parser's scores that order a micro-batch's merges are computed one micro-batch earlier
(`engine.plan_ahead`), with random numbers that depend on (seed, step, micro-step, rank) alone.
Within an optimizer step the weights stay, so nothing is stale; with `steps` a step's first
micro-batch is ordered by the weights before the last update. docs/plan_ahead.md has what it costs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from gpst.batch import ContextBatch
from gpst.chart.order import HostScores
from gpst.chart.plan import ChartPlan
from pipeline.config import RunConfig
from pipeline.errors import CheckpointError
from pipeline.resolve import BatchPlan
from pipeline.sampler import mix
from pipeline.schedule import schedule
from pipeline.world import World

_ORDER = 1
"""Tells the random numbers of the order from those of the micro-batch (step.micro_seed)."""


class Batches(Protocol):
    """Where a step's micro-batches come from: a BatchReader or a Prefetcher."""

    def read(self, step: int, micro_step: int) -> ContextBatch:
        """Micro-batch `micro_step` of this rank in step `step`, on the CPU."""
        ...


class Planner(Protocol):
    """A model that plans charts: GPST, or a classifier on it."""

    def order(self, batch: ContextBatch, noise: float, seed: int) -> HostScores:
        """The present scores, on their way to the host."""
        ...

    plan_of: Callable[..., ChartPlan]
    """(sentence lengths, scores, inner or None, rule of atoms, pin=...) -> plan on the host."""


@dataclass(frozen=True)
class MicroBatch:
    """What a forward pass is given."""

    read: ContextBatch
    """On the CPU."""
    batch: ContextBatch
    """On the rank's device."""
    plan: ChartPlan | None = None
    """On the host; None: the forward pass makes it."""


@dataclass(frozen=True)
class FirstOrder:
    """What orders the first micro-batch of a step on one rank; kept in checkpoints."""

    step: int
    digest: str
    """Of the micro-batch's tokens and sentences."""
    scores: np.ndarray
    """(N,) with noise."""


@dataclass(frozen=True)
class _Waiting:
    """A micro-batch whose plan is being made."""

    place: tuple[int, int]
    read: ContextBatch
    batch: ContextBatch
    plan: Future[ChartPlan]


class PlanAhead:
    """The micro-batches of a rank, each with its plan. Close it when done.

    Args:
        accumulation: micro-batches of this rank in a step.
        first: what a checkpoint has kept for the first step to come.
        threaded: false makes each plan in the calling thread: the same plans, for tests.
    """

    def __init__(
        self,
        planner: Planner,
        config: RunConfig,
        accumulation: int,
        rank: int,
        device: torch.device,
        first: FirstOrder | None = None,
        threaded: bool = True,
    ) -> None:
        self._planner, self._config, self._accumulation = planner, config, accumulation
        self._rank, self._device = rank, device
        self._across_steps = config.engine.plan_ahead == "steps"
        self._pool = ThreadPoolExecutor(1, "plan") if threaded else None
        self._next: _Waiting | None = None
        self._given = first
        self._orders: dict[int, tuple[ContextBatch, HostScores]] = {}

    def take(self, batches: Batches, step: int, micro_step: int) -> MicroBatch:
        """The micro-batch with its plan; the one after it is begun.

        Raises:
            Exception: what the thread raised while it planned.
        """
        here, waiting = (step, micro_step), self._next
        self._next = None
        if waiting is None or waiting.place != here:
            waiting = self._begin(batches, here)
        following = self._following(step, micro_step)
        if following is not None:
            self._next = self._begin(batches, following)
        return MicroBatch(waiting.read, waiting.batch, waiting.plan.result())

    def _following(self, step: int, micro_step: int) -> tuple[int, int] | None:
        if micro_step + 1 < self._accumulation:
            return step, micro_step + 1
        if self._across_steps and step + 1 < self._config.train.num_steps:
            return step + 1, 0
        return None

    def _begin(self, batches: Batches, place: tuple[int, int]) -> _Waiting:
        read = batches.read(*place)
        batch = read.to(self._device, non_blocking=True)
        scores = self._scores(read, batch, *place)

        def plan() -> ChartPlan:
            pin = self._device.type == "cuda"
            own = read.sentence_lengths, scores.wait(), read.inner, read.atoms
            return self._planner.plan_of(*own, pin=pin)

        return _Waiting(place, read, batch, self._run(plan))

    def _scores(
        self, read: ContextBatch, batch: ContextBatch, step: int, micro_step: int
    ) -> HostScores:
        given, self._given = self._given, None
        expected = given is not None and (given.step, 0) == (step, micro_step)
        if given is not None and expected and given.digest == _digest(read):
            return self._keep(step, read, HostScores(torch.from_numpy(given.scores), None))
        seed = mix(self._config.seed, step, micro_step, self._rank, _ORDER)
        scores = self._planner.order(batch, schedule(self._config, step).noise, seed)
        return scores if micro_step else self._keep(step, read, scores)

    def _keep(self, step: int, read: ContextBatch, scores: HostScores) -> HostScores:
        if self._across_steps:
            # The step before as well: a run that stops at a spike is saved as it was before it.
            self._orders = {s: o for s, o in self._orders.items() if s >= step - 1}
            self._orders[step] = read, scores
        return scores

    def first_order(self, step: int) -> FirstOrder | None:
        """What orders the first micro-batch of step `step`, where its order is already fixed."""
        if step not in self._orders:
            return None
        read, scores = self._orders[step]
        return FirstOrder(step, _digest(read), scores.wait())

    def _run(self, plan: Callable[[], ChartPlan]) -> Future[ChartPlan]:
        if self._pool is not None:
            return self._pool.submit(plan)
        done: Future[ChartPlan] = Future()
        done.set_result(plan())
        return done

    def close(self) -> None:
        """Ends the thread; may be called twice."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> PlanAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan_ahead(
    model: Any, config: RunConfig, batches: BatchPlan, world: World, checkpoint: Path | None
) -> PlanAhead | None:
    """The plans made ahead that the config asks for; None if it does not, or the model has none.

    Args:
        checkpoint: the one that the run goes on from.
    """
    mode = config.engine.plan_ahead
    if mode == "none" or not hasattr(model, "order"):
        return None
    first = None
    if mode == "steps" and checkpoint is not None:
        first = read_first_order(checkpoint, world.rank)
    return PlanAhead(model, config, batches.accumulation, world.rank, world.device, first)


def write_first_order(folder: Path, rank: int, order: FirstOrder) -> None:
    """Writes it into a checkpoint's folder, a file a rank."""
    with open(folder / _file_name(rank), "wb") as file:
        np.savez(file, step=order.step, digest=order.digest, scores=order.scores)


def read_first_order(checkpoint: Path, rank: int) -> FirstOrder | None:
    """What `write_first_order` wrote; None when there is none for the rank.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = checkpoint / _file_name(rank)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as saved:
            return FirstOrder(int(saved["step"]), str(saved["digest"]), saved["scores"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"checkpoint {checkpoint}: {path.name} cannot be read ({error})"
        ) from None


def _file_name(rank: int) -> str:
    return f"first_order_rank_{rank}.npz"


def _digest(batch: ContextBatch) -> str:
    hashed = hashlib.sha256()
    for array in (batch.tokens.numpy(), batch.sentence_lengths, batch.sentences_per_context):
        hashed.update(array.astype(np.int64).tobytes())
        hashed.update(b"|")
    return hashed.hexdigest()
