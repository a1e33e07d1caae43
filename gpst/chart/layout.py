"""From boundary scores to a ChartLayout: all that the passes need to know, as integers.

Cells of a micro-batch are numbered level by level; tokens are cells 0..N-1 in the order of the
flat batch. Within a level, cells with equally many splits are neighbours, so that the softmax
over the splits of a cell is dense. Edges (left child, right child -> cell) follow the cells.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int64, Integer, Real
from torch import Tensor

from gpst.chart import merge, numbering
from gpst.chart.atoms import AtomRule, cutting_edges, inside_words_first
from gpst.chart.levels import Level, OutsideLevel, inside_levels, outside_levels
from gpst.chart.packing import pack, views_of

_TENSORS = (
    *("left", "right", "parent", "cut", "edge_start", "roots", "postorder", "outside_row"),
    *("message_parent", "message_sibling", "message_side", "message_child"),
    "cutting",
    "level_starts",
)
"""Of a layout, in the order in which they lie in `integers`."""
_SCHEDULES = {"score": merge.SCORE, "height": merge.HEIGHT}


@dataclass(frozen=True)
class ChartLayout:
    """The chart of a micro-batch of S sentences with N tokens: C cells, E edges, 2E messages.

    All tensors are int64 views of one, and lie on one device; sizes and levels are plain Python
    integers.
    """

    num_tokens: int
    num_sentences: int
    num_cells: int
    levels: tuple[Level, ...]
    outside_levels: tuple[OutsideLevel, ...]
    left: Int64[Tensor, "E"]
    """Cell of the left child."""
    right: Int64[Tensor, "E"]
    """Cell of the right child."""
    parent: Int64[Tensor, "E"]
    """Cell that the edge belongs to."""
    cut: Int64[Tensor, "E"]
    """Flat position of the last token of the left child: the boundary of the split."""
    edge_start: Int64[Tensor, "I"]
    """First edge of each cell that is not a token."""
    roots: Int64[Tensor, "S"]
    """Cell of each sentence's root."""
    postorder: Int64[Tensor, "C"]
    """All cells by sentence, end, then start descending: every tree's post-order."""
    outside_row: Int64[Tensor, "C"]
    """Row of each cell in the outside table; the S roots are rows 0..S-1."""
    message_parent: Int64[Tensor, "2*E"]
    """Outside row of the parent that sends the message."""
    message_sibling: Int64[Tensor, "2*E"]
    """Cell of the sibling."""
    message_side: Int64[Tensor, "2*E"]
    """0 when the child is the left one, 1 when it is the right one."""
    message_child: Int64[Tensor, "2*E"]
    """Outside row of the child, counted from the first row of its level."""
    cutting: Int64[Tensor, "forbidden"]
    """Edges that no tree may take, for they cut an atom; none unless atoms constrain the tree
    alone."""
    level_starts: Int64[Tensor, "_"]
    """First cell of each level above the tokens, and the number of cells."""
    spans: Int64[np.ndarray, "C 2"]
    """First and last token of each cell, flat positions; stays on the CPU."""
    sentence_ends: Int64[np.ndarray, "S"]
    """Number of tokens up to the end of each sentence; stays on the CPU."""
    integers: Int64[Tensor, "total"]
    """All of the tensors above, one after another, so that one copy moves them."""
    on_host: dict[str, np.ndarray]
    """The same integers by name, on the CPU wherever the tensors are."""

    def internal(self, cells: slice) -> slice:
        """Where cells that are not tokens lie in a table without the tokens."""
        return slice(cells.start - self.num_tokens, cells.stop - self.num_tokens)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ChartLayout:
        """The layout with its tensors on a device, by one copy."""
        moved = self.integers.to(device, non_blocking=non_blocking)
        if moved is self.integers:
            return self
        sizes = {name: len(getattr(self, name)) for name in _TENSORS}
        return replace(self, integers=moved, **views_of(moved, sizes))

    def check_is_of(self, sentence_ends: np.ndarray) -> None:
        """Raises ValueError unless this is a layout for sentences that end there."""
        ends = self.sentence_ends
        if len(ends) != len(sentence_ends) or self.num_tokens != sentence_ends[-1]:
            raise ValueError(
                f"the plan is of another batch: of {self.num_tokens} tokens in {len(ends)} "
                f"sentences, and this batch has {sentence_ends[-1]} in {len(sentence_ends)}"
            )
        if (ends != sentence_ends).any():
            first = int(np.argmax(ends != sentence_ends))
            start = ends[first - 1] if first else 0
            raise ValueError(
                f"the plan is of another batch: its sentence {first} has {ends[first] - start} "
                f"tokens, and this batch's has {sentence_ends[first] - start}"
            )


class _Charts(NamedTuple):
    """Charts of all sentences before the cells are numbered; one slab of rows a sentence."""

    spans: np.ndarray
    num_splits: np.ndarray
    children: np.ndarray
    level: np.ndarray  # -1: a cell that the root does not reach
    num_cells: np.ndarray
    root: np.ndarray


def _all_charts(scores, inside_word, starts, ends, window, schedule, num_threads) -> _Charts:
    bound = merge.cells_bound(window)
    rows, num_sentences = len(scores) * bound, len(ends)
    charts = _Charts(
        np.empty((rows, 2), np.int64),
        np.empty(rows, np.int64),
        np.empty((rows, window, 2), np.int64),
        np.empty(rows, np.int64),
        np.empty(num_sentences, np.int64),
        np.empty(num_sentences, np.int64),
    )
    arguments = (bound, scores, inside_word, starts, ends, window, schedule, *charts)
    if num_threads <= 1 or num_sentences < 64:
        numbering.chart_range(0, num_sentences, *arguments)
        return charts
    shares = np.linspace(0, len(scores), num_threads + 1)
    edges = np.searchsorted(starts, shares)  # about equally many tokens each
    with ThreadPoolExecutor(num_threads) as pool:
        jobs = [
            pool.submit(numbering.chart_range, int(a), int(b), *arguments)
            for a, b in pairwise(edges)
        ]
        for job in jobs:
            job.result()
    return charts


def build_layout(
    scores: Real[np.ndarray, "N"],
    sentence_ends: Integer[np.ndarray, "S"],
    window: int = 2,
    schedule: str = "score",
    inside_word: Bool[np.ndarray, "N"] | None = None,
    atoms: str = "constrain_tree",
    num_threads: int = 1,
    pin: bool = False,
) -> ChartLayout:
    """The pruned chart of every sentence of a micro-batch (paper 3.1 and appendix).

    Args:
        scores: score of the boundary after each token, of all sentences one after another;
            the entry of a sentence's last token is not read. Only the order matters.
        sentence_ends: number of tokens up to the end of each sentence, rising.
        window: W, at least 1.
        schedule: `score` or `height`.
        inside_word: whether the boundary after a token lies inside an atom (a span that every tree
            has as a constituent); none by default.
        atoms: whether cells may cross atoms; see atoms.py. No difference where there are none.
        num_threads: threads over sentences.
        pin: lay the tensors into page-locked memory, from which a GPU copies by itself.
    Raises:
        ValueError: shapes that do not agree, an unknown schedule or rule of atoms.
    """
    ends = np.ascontiguousarray(sentence_ends, dtype=np.int64)
    starts = np.concatenate(([0], ends))[:-1]
    if len(ends) == 0 or len(scores) != ends[-1] or (ends <= starts).any():
        raise ValueError(f"{len(scores)} scores for sentences of {ends[-1:].sum()} tokens in all")
    if schedule not in _SCHEDULES or window < 1:
        raise ValueError(f"schedule {schedule!r}, window {window}: score or height, at least 1")
    if atoms not in get_args(AtomRule):
        raise ValueError(f"atoms {atoms!r}: {' or '.join(get_args(AtomRule))}")
    num_tokens = len(scores)
    scores = np.ascontiguousarray(scores)
    no_atoms = np.zeros(num_tokens, np.bool_)
    inside_word = no_atoms if inside_word is None else np.asarray(inside_word, np.bool_)
    may_cross = atoms == "constrain_tree" and bool(inside_word.any())
    if may_cross:
        scores = inside_words_first(scores, inside_word)
    closed = no_atoms if may_cross else inside_word
    bound = merge.cells_bound(window)
    charts = _all_charts(scores, closed, starts, ends, window, _SCHEDULES[schedule], num_threads)
    number = np.full(num_tokens * bound, -1, np.int64)
    counts = numbering.number_cells(
        bound, starts, window, charts.num_splits, charts.level, charts.num_cells, number
    )
    num_cells = int(counts.sum())
    spans, row_of = np.empty((num_cells, 2), np.int64), np.empty((num_cells, 2), np.int64)
    numbering.fill_cells(
        bound, starts, charts.spans, charts.level, charts.num_cells, number, spans, row_of
    )
    num_edges = int((counts.sum(0) * np.arange(window + 1)).sum())
    edges = np.empty((num_edges, 4), np.int64)
    edge_start = np.empty(num_cells - num_tokens, np.int64)
    numbering.fill_edges(
        num_tokens, row_of, spans, charts.num_splits, charts.children, number, edges, edge_start
    )
    sizes, row = numbering.outside_order(num_cells, edges)
    messages = np.empty((2 * num_edges, 4), np.int64)
    level_messages = numbering.fill_messages(edges, row, sizes, messages)
    integers, tensors = pack(
        {
            **dict(zip(_TENSORS[:4], edges.T, strict=True)),
            "edge_start": edge_start,
            "roots": number[starts * bound + charts.root],
            "postorder": np.lexsort((-spans[:, 0], spans[:, 1])),
            "outside_row": row,
            **dict(zip(_TENSORS[8:12], messages.T, strict=True)),
            "cutting": cutting_edges(edges, spans, inside_word) if may_cross else edges[:0, 0],
            "level_starts": num_tokens + np.cumsum(np.append(0, counts[1:].sum(1))),
        },
        pin,
    )
    return ChartLayout(
        num_tokens=num_tokens,
        num_sentences=len(ends),
        num_cells=num_cells,
        levels=inside_levels(counts, num_tokens),
        outside_levels=outside_levels(sizes, level_messages),
        spans=spans,
        sentence_ends=ends,
        integers=integers,
        on_host={name: tensor.numpy() for name, tensor in tensors.items()},
        **tensors,
    )
