"""Several columns of integers in one tensor, so that one copy moves them to a GPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Int64, Integer
from torch import Tensor

_ALIGNED = 16
"""Every column starts at a multiple of so many elements: whole lines of a GPU's memory."""


def _room(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def views_of(
    packed: Int64[Tensor, "total"], sizes: Mapping[str, int]
) -> dict[str, Int64[Tensor, "_"]]:
    """The columns of the given sizes in a packed tensor, in their order."""
    views, first = {}, 0
    for name, size in sizes.items():
        views[name] = packed[first : first + size]
        first += _room(size)
    return views


def pack(
    columns: Mapping[str, Integer[np.ndarray, "_"]], pin: bool
) -> tuple[Int64[Tensor, "total"], dict[str, Int64[Tensor, "_"]]]:
    """(a tensor on the CPU that holds all columns, the views of each).

    Args:
        pin: use page-locked memory, from which a GPU copies without its host.
    """
    sizes = {name: len(column) for name, column in columns.items()}
    packed = torch.zeros(sum(map(_room, sizes.values())), dtype=torch.int64, pin_memory=pin)
    views = views_of(packed, sizes)
    for name, column in columns.items():
        views[name].numpy()[:] = column
    return packed, views
