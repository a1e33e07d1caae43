"""The chart layout against the word-for-word oracle and the worked example of the design."""

from __future__ import annotations

import chart_oracle
import numpy as np
import pytest

from gpst.chart.layout import ChartLayout, build_layout
from gpst.model.statistics import layout_sizes

WORKED_SCORES = [0.1, 0.7, 0.9, 0.5, 0.2]
WORKED = {
    "score": {
        (0, 1): [0], (1, 2): [1], (2, 3): [2], (3, 4): [3], (4, 5): [4],
        (0, 2): [0, 1], (3, 5): [3, 4], (2, 5): [2, 3], (0, 5): [1, 2],
    },
    "height": {
        (0, 1): [0], (1, 2): [1], (3, 4): [3], (4, 5): [4],
        (0, 2): [0, 1], (3, 5): [3, 4], (0, 5): [2],
    },
}  # fmt: skip


def cells_of(layout: ChartLayout, start: int, length: int) -> dict[tuple[int, int], list[int]]:
    """The cells of the sentence at a flat position, as the oracle gives them."""
    cells: dict[tuple[int, int], list[int]] = {}
    for edge in range(len(layout.parent)):
        i, j = (layout.spans[int(layout.parent[edge])] - start).tolist()
        if i >= 0 and j < length:
            cells.setdefault((i, j), []).append(int(layout.cut[edge]) - start)
    return cells


def plan_of(sentences: list[list[float]], **options) -> ChartLayout:
    flat = np.array([v for scores in sentences for v in [*scores, 99.0]])
    return build_layout(flat, np.cumsum([len(s) + 1 for s in sentences]), **options)


@pytest.mark.parametrize("schedule", ["score", "height"])
def test_worked_example(schedule):
    layout = plan_of([WORKED_SCORES], schedule=schedule)
    assert cells_of(layout, 0, 6) == WORKED[schedule]
    assert chart_oracle.chart(WORKED_SCORES, 2, schedule) == WORKED[schedule]


@pytest.mark.parametrize("schedule", ["score", "height"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_equals_the_oracle(schedule, window):
    rng = np.random.default_rng(window)
    # Ties among few distinct scores, and all lengths from a single token on.
    sentences = [rng.integers(0, 4, n).astype(float).tolist() for n in range(14)] + [
        rng.normal(size=n).tolist() for n in (0, 1, 2, 7, 20, 33)
    ]
    layout = plan_of(sentences, window=window, schedule=schedule)
    start = 0
    for scores in sentences:
        expected = chart_oracle.chart(scores, window, schedule)
        assert cells_of(layout, start, len(scores) + 1) == expected
        start += len(scores) + 1


@pytest.mark.parametrize("schedule", ["score", "height"])
def test_atoms_are_never_crossed_where_they_constrain_the_chart(schedule):
    rng = np.random.default_rng(5)
    for _ in range(30):
        sizes = rng.integers(1, 6, rng.integers(1, 6))
        ends = np.cumsum(sizes)
        atoms = [(int(e - s), int(e) - 1) for s, e in zip(sizes, ends, strict=True)]
        scores = rng.normal(size=ends[-1] - 1).tolist()
        inside_word = np.ones(ends[-1], bool)
        inside_word[ends - 1] = False
        layout = plan_of(
            [scores], schedule=schedule, inside_word=inside_word, atoms="constrain_chart"
        )
        cells = cells_of(layout, 0, int(ends[-1]))
        assert cells == chart_oracle.chart(scores, 2, schedule, atoms)
        for i, j in cells:
            for a, b in atoms:
                assert (i <= a and b <= j) or j < a or b < i or (a <= i and j <= b), (i, j, a, b)
        assert all(atom in cells for atom in atoms if atom[0] < atom[1])


def test_numbering_is_by_level_and_number_of_splits():
    rng = np.random.default_rng(1)
    ends = np.cumsum(rng.integers(1, 30, 50))
    layout = build_layout(rng.normal(size=ends[-1]), ends)
    level = np.zeros(layout.num_cells, int)
    edge = 0
    for number, step in enumerate(layout.levels, start=1):
        for block in step.blocks:
            for cell in range(block.cells.start, block.cells.stop):
                for _ in range(block.num_splits):
                    assert int(layout.parent[edge]) == cell
                    left, right = int(layout.left[edge]), int(layout.right[edge])
                    level[cell] = max(level[cell], 1 + level[left], 1 + level[right])
                    (i, k), (m, j) = layout.spans[left], layout.spans[right]
                    assert (i, j, m) == (*layout.spans[cell], k + 1)
                    assert int(layout.cut[edge]) == k
                    edge += 1
                assert level[cell] == number
    assert edge == len(layout.parent)
    assert layout.levels[-1].last_cell == layout.num_cells


def test_outside_order_has_every_message_once_and_parents_first():
    rng = np.random.default_rng(2)
    ends = np.cumsum(rng.integers(1, 30, 20))
    layout = build_layout(rng.normal(size=ends[-1]), ends)
    row = layout.outside_row.numpy()
    assert sorted(row) == list(range(layout.num_cells))
    assert sorted(row[layout.roots.numpy()]) == list(range(len(ends)))
    expected = []
    for e in range(len(layout.parent)):
        left, right, parent = int(layout.left[e]), int(layout.right[e]), int(layout.parent[e])
        expected += [(row[left], row[parent], right, 0), (row[right], row[parent], left, 1)]
    found = []
    for level in layout.outside_levels:
        for m in range(level.first_message, level.last_message):
            child = level.first_row + int(layout.message_child[m])
            parent = int(layout.message_parent[m])
            assert parent < level.first_row <= child < level.last_row
            sibling, side = int(layout.message_sibling[m]), int(layout.message_side[m])
            found.append((child, parent, sibling, side))
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("last", [1, 2, 30])
def test_threads_change_nothing(threads, last):
    """Every sentence is some thread's, the last one too, however short."""
    rng = np.random.default_rng(3)
    ends = np.cumsum(np.append(rng.integers(1, 40, 80), last))
    scores = rng.normal(size=ends[-1])
    one, several = (build_layout(scores, ends, num_threads=t) for t in (1, threads))
    assert one.levels == several.levels
    assert one.outside_levels == several.outside_levels
    assert (one.integers == several.integers).all()
    assert (one.spans == several.spans).all()


@pytest.mark.parametrize("schedule", ["score", "height"])
@pytest.mark.parametrize("shape", ["random", "rising", "falling", "flat"])
def test_long_sentences_stay_linear(schedule, shape):
    n = 2048
    scores = {
        "random": np.random.default_rng(0).normal(size=n),
        "rising": np.arange(n, dtype=float),
        "falling": -np.arange(n, dtype=float),
        "flat": np.zeros(n),
    }[shape]
    layout = build_layout(scores, np.array([n]), schedule=schedule)
    assert layout.num_cells <= 8 * n
    assert tuple(layout.spans[int(layout.roots[0])]) == (0, n - 1)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="3 scores for sentences of 4 tokens"):
        build_layout(np.zeros(3), np.array([4]))
    with pytest.raises(ValueError, match="3 scores for sentences of 3 tokens"):
        build_layout(np.zeros(3), np.array([3, 3]))
    with pytest.raises(ValueError, match="schedule 'best'"):
        build_layout(np.zeros(4), np.array([4]), schedule="best")


@pytest.mark.parametrize(
    ("scores", "sizes"),
    [
        # (0 (1 (2 3))), a token, (5 6): three levels; the first has (2 3) and (5 6).
        ([3.0, 2.0, 1.0], {"cells": 11, "edges": 4, "edges_over_tokens": 2, "levels": 3}),
        # ((0 1) (2 3)), a token, (5 6).
        ([1.0, 3.0, 2.0], {"cells": 11, "edges": 4, "edges_over_tokens": 3, "levels": 2}),
    ],
)
def test_the_sizes_of_a_chart(scores, sizes):
    layout = build_layout(np.array([*scores, 0, 0, 5, 0]), np.array([4, 5, 7]), window=1)
    assert layout_sizes(layout) == sizes
