"""The order in which a GPU's programs go through a chart, made on the host beside its layout.

Large levels take a launch each. All levels above the last large one are walked in one launch: each
program has a group of neighbouring sentences, whose pairs it goes through level after level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from gpst.chart.layout import ChartLayout
from gpst.chart.packing import pack, views_of
from gpst.jit.compiled import compiled

PAIRS, WALKED_PAIRS = 16, 8
"""Pairs of a program's tile in a launch of a level's own, and in a walk: a multiprocessor streams
the weights in about the time of the products with 32 rows."""
LARGE = 448
"""Pairs of a level from which on it takes a launch of its own."""
_PAIRS_A_GROUP, _MOST_GROUPS = 6, 96
"""A program walks a group of sentences: about so many pairs at its first level; and there are fewer
programs than a GPU has multiprocessors."""


class Launch(NamedTuple):
    """A large level: where its pairs lie in `order` and its cells in `cell_order`."""

    first: int
    last: int
    first_cell: int
    last_cell: int
    routes: int
    """Of gradients that go on below it, at most."""


@dataclass(frozen=True)
class Walk:
    """Of one pass; all tensors are views of one on the device."""

    launches: tuple[Launch, ...]
    groups: int
    """Programs of the walk through the small levels; 0 where there are none."""
    base: int
    """First slot of the small levels."""
    most_slots: int
    """Of one launch."""
    order: Int64[Tensor, "P"]
    """The pair in each slot: an edge, or a message."""
    cell_order: Int64[Tensor, "_"]
    starts: Int64[Tensor, "_"]
    """First pair of each cell."""
    owner: Int64[Tensor, "P"]
    """The cell of each pair."""
    steps: Int64[Tensor, "_"]
    step_starts: Int64[Tensor, "_"]
    incoming_starts: Int64[Tensor, "_"]
    incoming: Int64[Tensor, "_"]
    """Rows (2 pair + vector) that read a row of the pass's own table, row after row."""
    sibling_starts: Int64[Tensor, "_"]
    sibling_incoming: Int64[Tensor, "_"]
    """Of the outside pass: rows that read each cell's inside vector."""


@compiled
def by_key(keys, size):
    """(where each key's places begin, the places of all keys in their order), stable."""
    starts = np.zeros(size + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(size):
        starts[key + 1] += starts[key]
    at = starts[:-1].copy()
    places = np.empty(len(keys), np.int64)
    for place in range(len(keys)):
        places[at[keys[place]]] = place
        at[keys[place]] += 1
    return starts, places


def inside_walk(layout: ChartLayout) -> Walk:
    """Of the inside pass: pairs are edges, cells those that are not tokens."""
    host = layout.on_host
    edges = len(host["left"])
    first_cell = layout.num_tokens
    levels = [
        Launch(level.first_edge, level.last_edge, level.first_cell - first_cell,
               level.last_cell - first_cell, 1 if number == 0 else 2)
        for number, level in enumerate(layout.levels)
    ]  # fmt: skip
    starts = np.append(host["edge_start"], edges)
    children = np.stack((host["left"], host["right"]), 1).reshape(-1)
    incoming_starts, incoming = by_key(children, layout.num_cells)
    sentence = np.searchsorted(layout.sentence_ends, layout.spans[first_cell:, 0], "right")
    columns = {
        "starts": starts,
        "owner": host["parent"] - first_cell,
        "incoming_starts": incoming_starts,
        "incoming": incoming,
    }
    return _walk(layout, levels, sentence, starts, columns)


def outside_walk(layout: ChartLayout) -> Walk:
    """Of the outside pass: pairs are messages, cells the rows of the outside table."""
    host, num_cells = layout.on_host, layout.num_cells
    levels = [
        Launch(level.first_message, level.last_message, level.first_row, level.last_row, 1)
        for level in layout.outside_levels
    ]
    sizes = [level.last - level.first for level in levels]
    owner = host["message_child"] + np.repeat([level.first_cell for level in levels], sizes)
    starts, _ = by_key(owner, num_cells)
    incoming_starts, messages = by_key(host["message_parent"], num_cells)
    sibling_starts, siblings = by_key(host["message_sibling"], num_cells)
    cell_of_row = np.empty(num_cells, np.int64)
    cell_of_row[host["outside_row"]] = np.arange(num_cells)
    first = layout.spans[cell_of_row, 0]
    sentence = np.searchsorted(layout.sentence_ends, first, "right")
    columns = {
        "starts": starts,
        "owner": owner,
        "incoming_starts": incoming_starts,
        "incoming": 2 * messages,
        "sibling_starts": sibling_starts,
        "sibling_incoming": 2 * siblings + 1,
    }
    return _walk(layout, levels, sentence, starts, columns)


def _balanced(
    sentence: Int64[np.ndarray, "cells"], pairs: Int64[np.ndarray, "cells"], groups: int
) -> Int64[np.ndarray, "cells"]:
    """The group of each cell: neighbouring sentences, about as many pairs in each group."""
    of_sentence = np.bincount(sentence, pairs).astype(np.int64)
    before = np.cumsum(of_sentence) - of_sentence
    return (before * groups // of_sentence.sum())[sentence]


def _walk(
    layout: ChartLayout,
    levels: list[Launch],
    sentence: np.ndarray,
    starts: np.ndarray,
    columns: dict[str, np.ndarray],
) -> Walk:
    large = [number for number, level in enumerate(levels) if level.last - level.first > LARGE]
    small = levels[large[-1] + 1 :] if large else levels
    order, cell_order = np.arange(starts[-1]), np.arange(len(starts) - 1)
    steps, step_starts, groups, base = np.empty((0, 5), np.int64), np.zeros(1, np.int64), 0, 0
    if small:
        base, first_cell = small[0].first, small[0].first_cell
        most = max(level.last - level.first for level in small)
        groups = min(-(-most // _PAIRS_A_GROUP), _MOST_GROUPS, layout.num_sentences)
        level_of = np.repeat(
            np.arange(len(small)), [level.last_cell - level.first_cell for level in small]
        )
        group_of = _balanced(sentence[first_cell:], np.diff(starts[first_cell:]), groups)
        step_ends, cells = by_key(group_of * len(small) + level_of, groups * len(small))
        cells += first_cell
        cell_order[first_cell:] = cells
        pairs = starts[cells + 1] - starts[cells]
        ends = np.concatenate(([0], np.cumsum(pairs)))
        order[base:] = np.repeat(starts[cells] - ends[:-1], pairs) + np.arange(ends[-1])
        routes = np.tile([level.routes for level in small], groups)
        steps = np.stack(
            (base + ends[step_ends[:-1]], base + ends[step_ends[1:]],
             first_cell + step_ends[:-1], first_cell + step_ends[1:], routes), 1,
        )  # fmt: skip
        filled = step_ends[1:] > step_ends[:-1]
        step_starts = np.concatenate(([0], np.cumsum(filled.reshape(groups, -1).sum(1))))
        steps = steps[filled]
    launches = tuple(levels[: len(levels) - len(small)])
    sizes = [level.last - level.first for level in launches] + [len(order) - base if small else 0]
    none = order[:0]
    columns = {
        "order": order,
        "cell_order": cell_order,
        "steps": steps.reshape(-1),
        "step_starts": step_starts,
        "sibling_starts": none,
        "sibling_incoming": none,
        **columns,
    }
    device = layout.left.device
    packed, views = pack(columns, pin=device.type == "cuda")
    if device.type == "cuda":
        moved = packed.to(device, non_blocking=True)
        views = views_of(moved, {name: len(column) for name, column in columns.items()})
    return Walk(launches, groups, base, max(sizes), **views)
