"""Which device a model is put on."""

from __future__ import annotations

import torch


def usable_device(device: str | torch.device) -> torch.device:
    """The device of this name.

    Raises:
        ValueError: it is neither the CPU nor a GPU that is here.
    """
    try:
        found = torch.device(device)
    except RuntimeError:
        found = torch.device("meta")
    gpus = torch.cuda.device_count()
    if found.type == "cpu" or (found.type == "cuda" and (found.index or 0) < gpus):
        return found
    raise ValueError(f"device: {str(device)!r} is not here; it may be cpu" + ", cuda" * bool(gpus))
