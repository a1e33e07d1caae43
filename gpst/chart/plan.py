"""From boundary scores to a ChartPlan: all that the passes need to know, as integers.

Cells of a micro-batch are numbered level by level; tokens are cells 0..N-1 in the order of the
flat batch. Within a level, cells with equally many splits are neighbours, so that the softmax
over the splits of a cell is dense. Edges (left child, right child -> cell) follow the cells.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gpst.chart import merge

_SCHEDULES = {"score": merge.SCORE, "height": merge.HEIGHT}


class Block(NamedTuple):
    """Cells of one level that have the same number of splits."""

    first_cell: int
    num_cells: int
    first_edge: int
    num_splits: int


class Level(NamedTuple):
    """One batched step of the inside pass."""

    first_cell: int
    last_cell: int
    first_edge: int
    last_edge: int
    blocks: tuple[Block, ...]


class OutsideLevel(NamedTuple):
    """One batched step of the outside pass; rows are cells in outside order."""

    first_row: int
    last_row: int
    first_message: int
    last_message: int


@dataclass(frozen=True)
class ChartPlan:
    """The chart of a micro-batch of S sentences with N tokens: C cells, E edges, 2E messages.

    All tensors are int64 and lie on one device; sizes and levels are plain Python integers.
    """

    num_tokens: int
    num_sentences: int
    num_cells: int
    levels: tuple[Level, ...]
    outside_levels: tuple[OutsideLevel, ...]
    left: Tensor
    """(E,) cell of the left child."""
    right: Tensor
    """(E,) cell of the right child."""
    parent: Tensor
    """(E,) cell that the edge belongs to."""
    cut: Tensor
    """(E,) flat position of the last token of the left child: the boundary of the split."""
    edge_start: Tensor
    """(C - N,) first edge of each cell that is not a token."""
    roots: Tensor
    """(S,) cell of each sentence's root."""
    postorder: Tensor
    """(C,) all cells by sentence, end, then start descending: every tree's post-order."""
    outside_row: Tensor
    """(C,) row of each cell in the outside table; the S roots are rows 0..S-1."""
    message_parent: Tensor
    """(2E,) outside row of the parent that sends the message."""
    message_sibling: Tensor
    """(2E,) cell of the sibling."""
    message_side: Tensor
    """(2E,) 0 when the child is the left one, 1 when it is the right one."""
    message_child: Tensor
    """(2E,) outside row of the child, counted from the first row of its level."""
    spans: np.ndarray
    """(C, 2) first and last token of each cell, flat positions; stays on the CPU."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ChartPlan:
        moved = {
            f.name: getattr(self, f.name).to(device, non_blocking=non_blocking)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)


class _Charts(NamedTuple):
    """Charts of all sentences before the cells are numbered; one slab of rows a sentence."""

    spans: np.ndarray
    num_splits: np.ndarray
    children: np.ndarray
    level: np.ndarray  # -1: a cell that the root does not reach
    num_cells: np.ndarray
    root: np.ndarray


@njit(cache=True, nogil=True)
def _reachable_levels(num_cells, root, num_splits, children, level):
    """Level of each cell that the root reaches, -1 for the others."""
    level[:num_cells] = -1
    level[root] = 0
    for cell in range(num_cells - 1, -1, -1):
        if level[cell] >= 0:
            for s in range(num_splits[cell]):
                level[children[cell, s, 0]] = 0
                level[children[cell, s, 1]] = 0
    for cell in range(num_cells):
        if level[cell] >= 0:
            for s in range(num_splits[cell]):
                below = max(level[children[cell, s, 0]], level[children[cell, s, 1]])
                level[cell] = max(level[cell], below + 1)


@njit(cache=True, nogil=True)
def _chart_range(
    first, last, bound, scores, inner, starts, lengths, window, schedule,
    spans, num_splits, children, level, num_cells, root,
):  # fmt: skip
    for s in range(first, last):
        a, n = starts[s], lengths[s]
        i, j = a * bound, (a + n) * bound
        out = (spans[i:j], num_splits[i:j], children[i:j])
        num_cells[s], root[s] = merge.chart_of_sentence(
            scores[a : a + n], inner[a : a + n], window, schedule, out
        )
        _reachable_levels(num_cells[s], root[s], out[1], out[2], level[i:j])


def _all_charts(scores, inner, starts, lengths, window, schedule, num_threads) -> _Charts:
    bound = merge.cells_bound(window)
    rows, num_sentences = len(scores) * bound, len(lengths)
    charts = _Charts(
        np.empty((rows, 2), np.int64),
        np.empty(rows, np.int64),
        np.empty((rows, window, 2), np.int64),
        np.empty(rows, np.int64),
        np.empty(num_sentences, np.int64),
        np.empty(num_sentences, np.int64),
    )
    arguments = (bound, scores, inner, starts, lengths, window, schedule, *charts)
    if num_threads <= 1 or num_sentences < 64:
        _chart_range(0, num_sentences, *arguments)
        return charts
    shares = np.linspace(0, len(scores), num_threads + 1)
    edges = np.searchsorted(starts, shares)  # about equally many tokens each
    with ThreadPoolExecutor(num_threads) as pool:
        jobs = [
            pool.submit(_chart_range, int(a), int(b), *arguments)
            for a, b in zip(edges[:-1], edges[1:], strict=True)
        ]
        for job in jobs:
            job.result()
    return charts


@njit(cache=True, nogil=True)
def _number_cells(bound, starts, lengths, window, num_splits, level, num_cells, number):
    """Number the kept cells by (level, number of splits), stable; tokens keep their places.

    Returns the number of cells of each (level, number of splits).
    """
    top = 0
    for s in range(len(lengths)):
        base = starts[s] * bound
        for c in range(num_cells[s]):
            top = max(top, level[base + c])
    counts = np.zeros((top + 1, window + 1), dtype=np.int64)
    for s in range(len(lengths)):
        base = starts[s] * bound
        for c in range(num_cells[s]):
            if level[base + c] >= 0:
                counts[level[base + c], num_splits[base + c]] += 1
    at = np.zeros((top + 1, window + 1), dtype=np.int64)
    total = 0
    for i in range(top + 1):
        for k in range(window + 1):
            at[i, k] = total
            total += counts[i, k]
    for s in range(len(lengths)):
        base = starts[s] * bound
        for c in range(num_cells[s]):
            if level[base + c] >= 0:
                place = at[level[base + c], num_splits[base + c]]
                number[base + c] = place
                at[level[base + c], num_splits[base + c]] += 1
    return counts


@njit(cache=True, nogil=True)
def _fill_cells(bound, starts, lengths, spans, level, num_cells, number, all_spans, row_of):
    for s in range(len(lengths)):
        base = starts[s] * bound
        for c in range(num_cells[s]):
            if level[base + c] >= 0:
                cell = number[base + c]
                all_spans[cell, 0] = spans[base + c, 0] + starts[s]
                all_spans[cell, 1] = spans[base + c, 1] + starts[s]
                row_of[cell, 0] = base
                row_of[cell, 1] = base + c


@njit(cache=True, nogil=True)
def _fill_edges(num_tokens, row_of, all_spans, num_splits, children, number, edges, first):
    """edges: (E, 4) left, right, parent, cut, by cell and then by split."""
    e = 0
    for cell in range(num_tokens, len(row_of)):
        base, row = row_of[cell]
        first[cell - num_tokens] = e
        for s in range(num_splits[row]):
            left = number[base + children[row, s, 0]]
            edges[e, 0] = left
            edges[e, 1] = number[base + children[row, s, 1]]
            edges[e, 2] = cell
            edges[e, 3] = all_spans[left, 1]
            e += 1


@njit(cache=True, nogil=True)
def _outside_order(num_cells, edges):
    """Outside level of each cell (root 0, else one more than its highest parent) and its row."""
    depth = np.zeros(num_cells, dtype=np.int64)
    for e in range(len(edges) - 1, -1, -1):
        for side in range(2):
            child = edges[e, side]
            depth[child] = max(depth[child], depth[edges[e, 2]] + 1)
    sizes = np.zeros(depth.max() + 1, dtype=np.int64)
    for cell in range(num_cells):
        sizes[depth[cell]] += 1
    at = np.cumsum(sizes) - sizes
    row = np.empty(num_cells, dtype=np.int64)
    for cell in range(num_cells):
        row[cell] = at[depth[cell]]
        at[depth[cell]] += 1
    return sizes, row


@njit(cache=True, nogil=True)
def _fill_messages(edges, row, level_sizes, messages):
    """messages: (2E, 4) parent row, sibling cell, side, child row in its level; by child row.

    Returns the number of messages of each outside level.
    """
    num_cells = len(row)
    count = np.zeros(num_cells + 1, dtype=np.int64)
    for e in range(len(edges)):
        count[row[edges[e, 0]] + 1] += 1
        count[row[edges[e, 1]] + 1] += 1
    at = np.cumsum(count)
    level_first = np.cumsum(level_sizes) - level_sizes
    level_messages = np.zeros(len(level_sizes), dtype=np.int64)
    for i in range(len(level_sizes)):
        first = level_first[i]
        level_messages[i] = at[first + level_sizes[i]] - at[first]
    first_of = np.repeat(level_first, level_sizes)
    for e in range(len(edges)):
        for side in range(2):
            child = row[edges[e, side]]
            m = at[child]
            at[child] += 1
            messages[m, 0] = row[edges[e, 2]]
            messages[m, 1] = edges[e, 1 - side]
            messages[m, 2] = side
            messages[m, 3] = child - first_of[child]
    return level_messages


def _inside_levels(counts: np.ndarray, num_tokens: int) -> tuple[Level, ...]:
    levels, cell, edge = [], num_tokens, 0
    for row in counts[1:]:
        first_cell, first_edge, blocks = cell, edge, []
        for k, size in enumerate(row.tolist()):
            if size:
                blocks.append(Block(cell, size, edge, k))
                cell += size
                edge += size * k
        levels.append(Level(first_cell, cell, first_edge, edge, tuple(blocks)))
    return tuple(levels)


def _outside_levels(sizes: np.ndarray, messages: np.ndarray) -> tuple[OutsideLevel, ...]:
    rows = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    ends = np.concatenate([[0], np.cumsum(messages)]).tolist()
    return tuple(
        OutsideLevel(rows[i], rows[i + 1], ends[i], ends[i + 1]) for i in range(1, len(sizes))
    )


def build_plan(
    scores: np.ndarray,
    sentence_lengths: np.ndarray,
    window: int = 2,
    schedule: str = "score",
    inner: np.ndarray | None = None,
    num_threads: int = 1,
) -> ChartPlan:
    """The pruned chart of every sentence of a micro-batch (design 2.2, paper 3.1 and appendix).

    Args:
        scores: (N,) score of the boundary after each token, of all sentences one after another;
            the entry of a sentence's last token is not read. Only the order matters.
        sentence_lengths: (S,) tokens of each sentence, at least 1.
        window: W, at least 1.
        schedule: `score` or `height`.
        inner: (N,) whether the boundary after a token lies inside an atom (a span that may not
            be crossed); none by default.
        num_threads: threads over sentences.
    Raises:
        ValueError: shapes that do not agree, an unknown schedule.
    """
    lengths = np.ascontiguousarray(sentence_lengths, dtype=np.int64)
    if len(scores) != int(lengths.sum()) or len(lengths) == 0 or int(lengths.min()) < 1:
        raise ValueError(
            f"{len(scores)} scores for sentences of {int(lengths.sum())} tokens in all"
        )
    if schedule not in _SCHEDULES or window < 1:
        raise ValueError(f"schedule {schedule!r}, window {window}: score or height, at least 1")
    num_tokens = len(scores)
    scores = np.ascontiguousarray(scores)
    inner = np.zeros(num_tokens, np.bool_) if inner is None else np.asarray(inner, np.bool_)
    starts = np.cumsum(lengths) - lengths
    bound = merge.cells_bound(window)
    charts = _all_charts(scores, inner, starts, lengths, window, _SCHEDULES[schedule], num_threads)
    number = np.full(num_tokens * bound, -1, np.int64)
    counts = _number_cells(
        bound, starts, lengths, window, charts.num_splits, charts.level, charts.num_cells, number
    )
    num_cells = int(counts.sum())
    spans, row_of = np.empty((num_cells, 2), np.int64), np.empty((num_cells, 2), np.int64)
    _fill_cells(
        bound, starts, lengths, charts.spans, charts.level, charts.num_cells, number, spans, row_of
    )
    num_edges = int((counts.sum(0) * np.arange(window + 1)).sum())
    edges = np.empty((num_edges, 4), np.int64)
    edge_start = np.empty(num_cells - num_tokens, np.int64)
    _fill_edges(
        num_tokens, row_of, spans, charts.num_splits, charts.children, number, edges, edge_start
    )
    sizes, row = _outside_order(num_cells, edges)
    messages = np.empty((2 * num_edges, 4), np.int64)
    level_messages = _fill_messages(edges, row, sizes, messages)
    columns = [torch.from_numpy(np.ascontiguousarray(c)) for c in edges.T]
    message_columns = [torch.from_numpy(np.ascontiguousarray(c)) for c in messages.T]
    return ChartPlan(
        num_tokens,
        len(lengths),
        num_cells,
        _inside_levels(counts, num_tokens),
        _outside_levels(sizes, level_messages),
        *columns,
        torch.from_numpy(edge_start),
        torch.from_numpy(number[starts * bound + charts.root]),
        torch.from_numpy(np.lexsort((-spans[:, 0], spans[:, 1]))),
        torch.from_numpy(row),
        *message_columns,
        spans,
    )
