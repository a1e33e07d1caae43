"""What the kernels of whole levels and of the vocabulary's loss cost, from their arguments.

The sizes of their tiles are on the GPU; the forecast reads them where the host sent them from.
"""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forecast.gpus import Cost, filled

SENT: weakref.WeakKeyDictionary[Any, Tensor] = weakref.WeakKeyDictionary()
"""Storage on the GPU -> what the host has sent there."""
_PROCESSORS = 108
_PHASES, _LAYER_PHASES, _CELL_STEPS = 5, 8, 4
"""Barriers of a tile, and of each layer and route; accesses of a cell, one after another."""


def host_values(tensor: Tensor) -> np.ndarray:
    """Integers on the GPU, as the host has sent them."""
    host = SENT[tensor.untyped_storage()]
    where = tensor.shape, tensor.stride(), tensor.storage_offset()
    return torch.as_strided(host.reshape(-1), *where).numpy()


class _Work:
    """Numbers of one pair and of one tile in a pass; `routes` is 0 forward."""

    def __init__(self, a: dict[str, Any], routes: int):
        L, D, F, S, K, BN = (a[name] for name in ("L", "D", "F", "S", "COMPARED", "BN"))
        size = a["x"].element_size()
        layer, maps = 4 * D * D + 2 * D * F, K * (D * D + D * S)
        times = max(routes, 1)
        self.weights = (times * L * layer + maps) * size
        self.flops = 4 * times * L * layer + 2 * maps
        if routes:
            again = -(-F // BN) * D + -(-D // BN) * (F + D + 3 * D)
            through = 6 * D + 3 * F + routes * (7 * D + F)
        else:
            again = -(-3 * D // BN) * D + -(-D // BN) * (D + F) + -(-F // BN) * D
            through = 6 * D + 2 * F + a["H"]
        self.again = 2 * times * L * again * size
        self.bytes = size * (2 * L * through + K * (2 * D + S) + 4 * D)
        self.phases = _PHASES + _LAYER_PHASES * L * times

    def cost(
        self, a: dict[str, Any], pairs: int, tiles: int, longest: tuple[int, int, int]
    ) -> Cost:
        """Args: longest: pairs, tiles and cells of the program that takes longest."""
        most_pairs, most_tiles, cells = longest
        return Cost(
            1,
            pairs * self.bytes,
            tiles * a["PAIRS"] * self.flops,
            "written" if a["x"].element_size() <= 2 else "plain",
            tiles * self.weights + pairs * self.again,
            most_tiles * self.weights + most_pairs * self.again,
            most_tiles * self.phases + cells * _CELL_STEPS,
            min(1.0, tiles / (max(most_tiles, 1) * _PROCESSORS)),
        )


def _level(a: dict[str, Any], routes: int) -> Cost:
    pairs = a["last"] - a["first"]
    tiles = -(-pairs // a["PAIRS"])
    rounds = -(-tiles // _PROCESSORS)
    return _Work(a, routes).cost(a, pairs, tiles, (rounds * a["PAIRS"], rounds, 0))


def _walk(a: dict[str, Any], routes: int) -> Cost:
    steps = host_values(a["steps"]).reshape(-1, 5)
    starts = host_values(a["step_starts"])
    pairs, cells = steps[:, 1] - steps[:, 0], steps[:, 3] - steps[:, 2]
    tiles = -(-pairs // a["PAIRS"])
    programs = [slice(first, last) for first, last in pairwise(starts)]
    longest = max(programs, key=lambda steps_of: int(tiles[steps_of].sum()))
    most = int(pairs[longest].sum()), int(tiles[longest].sum()), int(cells[longest].sum())
    return _Work(a, routes).cost(a, int(pairs.sum()), int(tiles.sum()), most)


def _cells(a: dict[str, Any], grid: tuple[int, ...]) -> Cost:
    """About two pairs a cell, each read once."""
    rows = grid[0] * 5 * a["D"]
    width = 4 * a.get("ROUTES", 1) + 2 * a["vectors"].element_size()
    return Cost(1, rows * width, 20.0 * rows, fill=filled(grid[0] / 8))


def _collect(a: dict[str, Any], grid: tuple[int, ...]) -> Cost:
    rows = grid[0] * a["D"]
    return Cost(1, rows * (8 + 4 * a["grad_rows"].element_size()), 10.0 * rows)


def _levels(a: dict[str, Any], grid: tuple[int, ...]) -> Cost:
    """One program walks all levels, a block of cells at a time."""
    cells = np.diff(host_values(a["level_starts"]))
    steps = int((-(-cells // a["BLOCK"])).sum()) * _CELL_STEPS
    return Cost(1, int(cells.sum()) * 64, chain_steps=steps)


def _cross_entropy(a: dict[str, Any], grid: tuple[int, ...]) -> Cost:
    """The logits are read; for their gradient once more, and written. A loss and a target a row."""
    logits = a["logits"]
    passes = 3 if a["GRADIENT"] else 1
    row = a["targets"].element_size() + a["losses"].element_size()
    traffic = passes * logits.numel() * logits.element_size() + grid[0] * row
    return Cost(1, traffic, 20.0 * logits.numel())


COSTS = {
    "pairs_forward": lambda a, _: _level(a, 0),
    "pairs_backward": lambda a, _: _level(a, a["routes"]),
    "walk_forward": lambda a, _: _walk(a, 0),
    "walk_backward": lambda a, _: _walk(a, a["ROUTES"]),
    "mix_cells": _cells,
    "cells_backward": _cells,
    "collect_rows": _collect,
    "_mark": _levels,
    "_likelihood": _levels,
    "_likelihood_backward": _levels,
    "_cross_entropy": _cross_entropy,
}
"""By a kernel's name."""
