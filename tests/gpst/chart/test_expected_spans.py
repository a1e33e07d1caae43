"""Probabilities of spans against all trees one by one, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from span_trees import all_trees

from gpst.chart.expected_spans import best_splits, inside_sums, span_probabilities


def spans_of(cut):
    spans, work = set(), [(0, len(cut) - 1)]
    while work:
        i, j = work.pop()
        if i < j:
            spans.add((i, j))
            work += [(i, int(cut[i, j])), (int(cut[i, j]) + 1, j)]
    return spans


def drawn(size, deviation, seed):
    return np.random.default_rng(seed).normal(0.0, deviation, (size, size))


def probability_of_trees(scores):
    trees = list(all_trees(0, len(scores) - 1))
    weights = [math.exp(sum(scores[span] for span in tree)) for tree in trees]
    return trees, weights


def test_three_words_by_hand():
    # Two trees; the span of the first two words has the weight 3, that of the last two 1. The whole
    # span's score, log 2, is in both.
    scores = np.zeros((3, 3))
    scores[0, 1], scores[0, 2] = math.log(3), math.log(2)
    assert inside_sums(scores)[0, 2] == pytest.approx(math.log(2 * (3 + 1)))
    shares = span_probabilities(scores)
    assert shares[0, 1] == pytest.approx(0.75)
    assert shares[1, 2] == pytest.approx(0.25)
    assert shares[0, 2] == 1.0


@pytest.mark.parametrize("size", range(1, 8))
def test_probabilities_are_those_of_all_trees(size):
    scores = drawn(size, 2.0, size)
    trees, weights = probability_of_trees(scores)
    shares = span_probabilities(scores)
    for i in range(size):
        for j in range(i + 1, size):
            share = sum(w for w, tree in zip(weights, trees, strict=True) if (i, j) in tree)
            assert shares[i, j] == pytest.approx(share / sum(weights), abs=1e-8)


@pytest.mark.parametrize("size", range(2, 8))
def test_the_tree_is_the_best_of_all(size):
    scores = drawn(size, 1.0, size)
    best = max(sum(scores[span] for span in tree) for tree in all_trees(0, size - 1))
    assert sum(scores[span] for span in spans_of(best_splits(scores))) == pytest.approx(best)


def test_of_equal_trees_the_right_branching_one():
    assert spans_of(best_splits(np.zeros((5, 5)))) == {(i, 4) for i in range(4)}


@pytest.mark.parametrize("deviation", [0.0, 1.0, 100.0])
def test_long_sentences_and_large_scores(deviation):
    size = 150
    shares = span_probabilities(drawn(size, deviation, 0) - 10.0 * deviation)
    assert np.isfinite(shares).all()
    assert shares.max() <= 1.0 + 1e-9
    # Every tree has one span fewer than words.
    assert np.triu(shares, 1).sum() == pytest.approx(size - 1, rel=1e-4)
