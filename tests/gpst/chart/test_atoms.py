"""Atoms in the chart and in the tree, by both rules, against all trees that a chart holds."""

from __future__ import annotations

import chart_oracle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_trees import splits_of

from gpst.chart.decode import decode, trees_of
from gpst.chart.layout import ChartLayout, build_layout

WORKED_SCORES = [0.1, 0.7, 0.9, 0.5, 0.2]
"""As in the layout's worked example; here tokens 2 and 3 are an atom."""
CROSSED = {
    (0, 1): [0], (1, 2): [1], (2, 3): [2], (3, 4): [3], (4, 5): [4],
    (1, 3): [1, 2], (2, 4): [2, 3], (0, 3): [0, 1], (2, 5): [3, 4], (0, 5): [1, 3],
}  # fmt: skip
"""By hand: boundaries 2, 0, 4 merge. (1, 2) and (3, 4) cross the atom."""
NOT_CROSSED = {
    (0, 1): [0], (2, 3): [2], (4, 5): [4], (1, 3): [1], (2, 4): [3],
    (0, 3): [0, 1], (2, 5): [3, 4], (0, 5): [1, 3],
}  # fmt: skip


def atoms_of(inside_word: list[bool]) -> list[tuple[int, int]]:
    """The atoms of a sentence, those of one token too; one entry a token, the last is not read."""
    starts = [0, *(k + 1 for k, inside in enumerate(inside_word[:-1]) if not inside)]
    return [(a, b - 1) for a, b in zip(starts, [*starts[1:], len(inside_word)], strict=True)]


def cells_of(layout: ChartLayout, sentence: int) -> dict[tuple[int, int], list[int]]:
    start, stop = np.append(0, layout.sentence_ends)[sentence : sentence + 2].tolist()
    cells: dict[tuple[int, int], list[int]] = {}
    for edge, parent in enumerate(layout.parent.tolist()):
        i, j = layout.spans[parent].tolist()
        if start <= i < stop:
            cells.setdefault((i - start, j - start), []).append(int(layout.cut[edge]) - start)
    return cells


@pytest.mark.parametrize(
    ("rule", "cells", "cutting"),
    [
        ("constrain_tree", CROSSED, {((1, 3), 2), ((2, 4), 2)}),
        ("constrain_chart", NOT_CROSSED, set()),
    ],
)
def test_worked_example(rule, cells, cutting):
    inside_word = np.arange(6) == 2
    layout = build_layout(
        np.array([*WORKED_SCORES, 9.0]), np.array([6]), 2, "score", inside_word, rule
    )
    assert cells_of(layout, 0) == cells
    found = [
        (tuple(layout.spans[int(layout.parent[edge])].tolist()), int(layout.cut[edge]))
        for edge in layout.cutting
    ]
    assert len(found) == len(cutting)
    assert set(found) == cutting


sentences = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(-3, 3).map(float), min_size=n, max_size=n),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@settings(max_examples=150, deadline=None)
@given(
    given_sentences=st.lists(sentences, min_size=1, max_size=3),
    window=st.integers(1, 3),
    schedule=st.sampled_from(["score", "height"]),
    rule=st.sampled_from(["constrain_tree", "constrain_chart"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_best_of_all_trees_that_have_the_atoms(given_sentences, window, schedule, rule, seed):
    scores = np.array([v for own, _ in given_sentences for v in own])
    inside_word = np.array([b for _, own in given_sentences for b in own])
    ends = np.cumsum([len(own) for own, _ in given_sentences])
    layout = build_layout(scores, ends, window, schedule, inside_word, rule)
    # Few values, so that there are ties.
    edge_scores = torch.from_numpy(np.random.default_rng(seed).integers(0, 4, len(layout.parent)))
    induced = trees_of(layout, decode(layout, edge_scores.double()))

    start = 0
    for number, (own_scores, own_inner) in enumerate(given_sentences):
        n, atoms = len(own_scores), atoms_of(own_inner)
        cells = cells_of(layout, number)
        may_cross = rule == "constrain_tree"
        assert cells == chart_oracle.chart(own_scores[:-1], window, schedule, atoms, may_cross)
        score_of = {
            (tuple((layout.spans[parent] - start).tolist()), cut - start): score
            for parent, cut, score in zip(
                layout.parent.tolist(), layout.cut.tolist(), edge_scores.tolist(), strict=True
            )
        }
        allowed = [
            tree
            for tree in chart_oracle.forest(cells, (0, n - 1))
            if {a for a in atoms if a[0] < a[1]} <= {span for span, _ in tree}
        ]
        assert allowed, "every chart holds a tree in which the atoms are constituents"
        best = max(allowed, key=lambda tree: [(score_of[split], -split[1]) for split in tree])
        assert sorted(splits_of(induced[number])) == sorted(best)
        start += n


def in_trees(layout: ChartLayout) -> set[tuple[int, int, int]]:
    """(first token, cut, last token) of the splits that a tree may have."""
    forbidden, reached = set(layout.cutting.tolist()), set(layout.roots.tolist())
    found = set()
    for edge in reversed(range(len(layout.parent))):
        parent = int(layout.parent[edge])
        if parent in reached and edge not in forbidden:
            reached |= {int(layout.left[edge]), int(layout.right[edge])}
            i, j = layout.spans[parent].tolist()
            found.add((i, int(layout.cut[edge]), j))
    return found


@pytest.mark.parametrize("window", [1, 2, 3])
def test_both_rules_leave_the_same_trees_under_the_schedule_score(window):
    rng = np.random.default_rng(window)
    ends = np.cumsum(rng.integers(1, 30, 20))
    scores, inside_word = rng.normal(size=ends[-1]), rng.random(ends[-1]) < 0.4
    crossing, closed = (
        build_layout(scores, ends, window, "score", inside_word, rule)
        for rule in ("constrain_tree", "constrain_chart")
    )
    assert in_trees(crossing) == in_trees(closed)
    assert (len(crossing.parent) > len(closed.parent)) == (window > 1)


def test_without_atoms_the_rules_are_one_and_nothing_is_forbidden():
    scores, ends = np.random.default_rng(0).normal(size=40), np.array([30, 31, 40])
    plain = build_layout(scores, ends)
    for rule in ("constrain_tree", "constrain_chart"):
        for inside_word in (None, np.zeros(40, bool)):
            layout = build_layout(scores, ends, inside_word=inside_word, atoms=rule)
            assert torch.equal(layout.integers, plain.integers)
            assert len(layout.cutting) == 0


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match=r"atoms 'split': constrain_tree or constrain_chart"):
        build_layout(np.zeros(3), np.array([3]), atoms="split")
