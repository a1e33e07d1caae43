"""Steps of GPST and GPT-2 under the recorder, and the times that follow."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forecast.gpus import GPU, HOST_S, WAIT_S, seconds
from forecast.recording import Record, backward, recording
from gpst.batch import ContextBatch
from gpst.config import ModelConfig
from gpst.model.build import build_model
from gpst.model.losses import total_loss
from gpst.model.modes import skip_init

PLAN_S_A_TOKEN = 3e-7
"""Of building a chart's layout on 8 threads: 1.5e-6 on 2 cores (benchmarks/LOG.md), a quarter on
8."""


@dataclass(frozen=True)
class Forecast:
    """A micro-batch forward and backward; the optimizer is left out, for it comes once for many."""

    record: Record
    plan_s: float
    """The host alone, after its wait for the scores."""
    weights: int
    """Bytes of weights and of their gradients' sums."""

    @property
    def launches(self) -> int:
        return self.record.launches

    @property
    def peak(self) -> int:
        """Bytes: weights, their gradients, activations."""
        return self.record.peak

    def gpu_seconds(self, gpu: GPU) -> float:
        """As if the host were never late."""
        return sum(seconds(event.cost, gpu) for event in self.record.events) + self._waiting()

    def _waiting(self) -> float:
        return len(self.record.waits) * WAIT_S + self.plan_s

    def seconds(self, gpu: GPU) -> tuple[float, float]:
        """Of a step, with the fast and with the slow host; between two waits whichever of host and
        GPU is slower decides."""
        low, high = (self._with_host(gpu, host) for host in HOST_S)
        return low, high

    def _with_host(self, gpu: GPU, host: float) -> float:
        total, first = self._waiting(), 0
        for last in [*self.record.waits_at, len(self.record.events)]:
            events = self.record.events[first:last]
            on_gpu = sum(seconds(event.cost, gpu) for event in events)
            total += max(on_gpu, host * sum(event.cost.launches for event in events))
            first = last
        return total

    def by_part(self, gpu: GPU) -> dict[str, list[float]]:
        """Launches forward and backward, and GPU seconds, of each part."""
        parts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for event in self.record.events:
            row = parts[event.place.part]
            row[event.backward] += event.cost.launches
            row[2] += seconds(event.cost, gpu)
        return dict(parts)


def forecast(
    config: ModelConfig,
    batch: ContextBatch,
    scores: np.ndarray,
    checkpointing: frozenset[str] = frozenset(),
    dtype: torch.dtype = torch.bfloat16,
) -> Forecast:
    """What a micro-batch does on a GPU, in the type that the engine trains in.

    Args:
        batch: on the CPU. scores: (N,) what the host reads as the parser's scores.
        checkpointing: parts that are recomputed: composition, generator.
    """

    def host_values(source: Tensor) -> Tensor:
        if source.shape == scores.shape and source.dtype == torch.float32:
            return torch.from_numpy(scores)
        return torch.ones(source.shape, dtype=source.dtype)

    with _triton(), skip_init():
        model = build_model(config).to("meta", dtype).train()
    model.activation_checkpointing = set(checkpointing)  # type: ignore[assignment]
    plan = PLAN_S_A_TOKEN * batch.num_tokens if config.kind == "gpst" else 0.0
    parameters = list(model.parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    with _triton(), recording(host_values, parameters) as record:
        moved = batch.pin_memory().to("cuda", non_blocking=True)
        loss = total_loss(model(moved, noise=1.0).losses, batch.counts)
        backward(loss)
    return Forecast(record, plan, weights)


@contextmanager
def _triton() -> Iterator[None]:
    """The kernels that a GPU has, without asking the device whether they agree."""
    before = os.environ.get("GPST_KERNELS")
    os.environ["GPST_KERNELS"] = "triton"
    try:
        yield
    finally:
        if before is None:
            del os.environ["GPST_KERNELS"]
        else:
            os.environ["GPST_KERNELS"] = before
