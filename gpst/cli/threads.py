"""How many threads multiply on a CPU, and how they wait for each other.

GNU OpenMP, which PyTorch computes with on Linux, lets a thread that waits for another spin for up
to 15 ms. On a machine with other work the other thread may not run at all meanwhile: parsing beside
a training took 15 times as long, and a training beside another 20 times (benchmarks/LOG.md).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WIDE = 512
"""Width of models from which on a product is large enough to share: narrower ones gain little."""
_SPINS = "1000"
"""50 microseconds or less; costs nothing where products take longer."""
_CHOICES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def wait_briefly() -> None:
    """Lets threads sleep that wait for long; comes before torch is imported.

    What the user has chosen in the environment stays.
    """
    if not any(name in os.environ for name in _CHOICES):
        os.environ["GOMP_SPINCOUNT"] = _SPINS


def use_threads(hidden_dim: int, device: torch.device) -> None:
    """One thread for a narrow model on a CPU, unless OMP_NUM_THREADS says otherwise.

    Args:
        hidden_dim: width of the model.
        device: where it computes.
    """
    import torch

    if device.type == "cpu" and hidden_dim < WIDE and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
