"""Boundary scores on their way to the host, where they order the merges of a chart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class HostScores:
    """Scores (N,) on the host, or still being copied there."""

    values: Tensor
    """(N,) on the CPU; in page-locked memory while `copied` is a GPU's event."""
    copied: torch.cuda.Event | None
    """Happens when the values are there; None: they are."""

    @classmethod
    def copy_of(cls, scores: Float[Tensor, "N"]) -> HostScores:
        """Starts the copy of scores on any device, after what was queued there before."""
        if scores.device.type != "cuda":
            return cls(scores, None)
        values = torch.empty(scores.shape, dtype=scores.dtype, pin_memory=True)
        values.copy_(scores, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(scores.device))
        return cls(values, copied)

    def wait(self) -> np.ndarray:
        """The values, once they are there; any thread may call it."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.values.numpy()


@contextmanager
def own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, random numbers on the CPU and the device follow from the seed alone.

    Afterwards PyTorch's generators are as they were before.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices, device_type="cuda"):
        torch.manual_seed(seed)
        yield
