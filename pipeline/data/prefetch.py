"""Batches read ahead of the training loop by a thread.

The contexts of a micro-batch are a pure function of its step, so reading ahead changes nothing but
the waiting.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from gpst.batch import ContextBatch
from gpst.chart.phrase_edges import PhraseEdges
from pipeline.config.batch_shape import BatchShape
from pipeline.data.order import batch_samples
from pipeline.data.source import ContextSource

_LOOK_EVERY_S = 0.2


class Batches(Protocol):
    """Where a step's micro-batches come from: a BatchReader or a Prefetcher."""

    def read(self, step: int, micro_step: int) -> ContextBatch:
        """Micro-batch `micro_step` of this rank in step `step`, on the CPU."""
        ...


@dataclass(frozen=True)
class BatchReader:
    """Reads the micro-batches of one rank."""

    source: ContextSource
    seed: int
    batch_shape: BatchShape
    rank: int
    phrase_edges: PhraseEdges | None = None
    """They order the charts; None: the parser does."""

    def read(self, step: int, micro_step: int) -> ContextBatch:
        """Micro-batch number `micro_step` of this rank in optimizer step `step`, on the CPU."""
        samples = batch_samples(
            step,
            micro_step,
            rank=self.rank,
            world_size=self.batch_shape.world_size,
            micro_batch=self.batch_shape.micro_batch,
            accumulation=self.batch_shape.accumulation,
        )
        batch = self.source.batch(self.source.sample(self.seed, samples))
        if self.phrase_edges is None:
            return batch
        scores = self.phrase_edges.boundary_scores(batch.tokens.numpy(), batch.sentence_ends)
        return replace(batch, boundary_scores=scores)

    def close(self) -> None:
        """Nothing to end."""


class Prefetcher:
    """The micro-batches of steps first_step .. last_step - 1, in their order, read by a thread.

    Args:
        ahead: micro-batches that wait at most.
        gpu: put them into page-locked memory, from which this GPU copies by itself.
    """

    def __init__(
        self,
        reader: BatchReader,
        first_step: int,
        last_step: int,
        *,
        ahead: int,
        gpu: torch.device | None = None,
    ) -> None:
        self._reader, self._gpu = reader, gpu
        self._order = _order(first_step, last_step, reader.batch_shape.accumulation)
        self._expected = _order(first_step, last_step, reader.batch_shape.accumulation)
        self._waiting: queue.Queue[ContextBatch | BaseException] = queue.Queue(max(1, ahead))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def read(self, step: int, micro_step: int) -> ContextBatch:
        """The next micro-batch, which must be the one asked for.

        Raises:
            ValueError: batches are asked for out of their order.
            DataError: as `ContextSource.batch`, when the loop comes to the damaged batch.
        """
        expected = next(self._expected, None)
        if (step, micro_step) != expected:
            raise ValueError(f"batch {(step, micro_step)} is asked for, the next is {expected}")
        batch = self._waiting.get()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def close(self) -> None:
        """Ends the thread; may be called twice."""
        self._over.set()
        self._thread.join()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        if self._gpu is not None:
            torch.cuda.set_device(self._gpu)  # a thread starts on GPU 0, and would open it
        for step, micro_step in self._order:
            result: ContextBatch | BaseException
            try:
                batch = self._reader.read(step, micro_step)
                result = batch if self._gpu is None else batch.pin_memory()
            except BaseException as error:
                result = error
            if not self._hand_over(result) or isinstance(result, BaseException):
                return

    def _hand_over(self, result: ContextBatch | BaseException) -> bool:
        """Waits for room; False when nobody wants batches any more."""
        while not self._over.is_set():
            try:
                self._waiting.put(result, timeout=_LOOK_EVERY_S)
            except queue.Full:
                continue
            return True
        return False


def _order(first_step: int, last_step: int, accumulation: int) -> Iterator[tuple[int, int]]:
    return ((step, micro) for step in range(first_step, last_step) for micro in range(accumulation))
