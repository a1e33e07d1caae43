"""Baselines: trees that depend on the sentence's length alone, and the best binary trees."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

from pipeline.evaluate.grammar_induction.f1 import Span, TreeScores, score_trees
from pipeline.treebank import GoldTree


def left_branching(num_words: int) -> list[Span]:
    """(((a b) c) d)."""
    return [(0, j) for j in range(1, num_words)]


def right_branching(num_words: int) -> list[Span]:
    """(a (b (c d)))."""
    return [(i, num_words - 1) for i in range(num_words - 1)]


def balanced(num_words: int) -> list[Span]:
    """Every span is split in the middle; of an odd number of words the left half has one more."""
    return _split(num_words, lambda i, j: (i + j) // 2)


def random_tree(num_words: int, source: random.Random) -> list[Span]:
    """Every split of a span is equally probable."""
    return _split(num_words, lambda i, j: source.randint(i, j - 1))


def _split(num_words: int, choose: Callable[[int, int], int]) -> list[Span]:
    spans, work = [], [(0, num_words - 1)]
    while work:
        i, j = work.pop()
        if i < j:
            spans.append((i, j))
            k = choose(i, j)
            work += [(k + 1, j), (i, k)]
    return spans


def best_binary(gold: GoldTree) -> list[Span]:
    """A binary tree with all spans of the gold tree; more than two children branch to the right."""
    last = len(gold.words) - 1
    ends: dict[int, list[int]] = {}
    for i, j in sorted(gold.spans()):
        ends.setdefault(i, []).append(j)
    spans, work = [], [(0, last)] if last > 0 else []
    while work:
        i, j = work.pop()
        spans.append((i, j))
        longest = [e for e in ends.get(i, []) if e < j]
        first = max(longest, default=i)
        if i < first:
            work.append((i, first))
        rest = first + 1
        # The rest is a node of the gold tree, a word, or a new node that is split next.
        if rest < j:
            work.append((rest, j))
    return spans


def baseline_scores(
    gold: Sequence[GoldTree], num_random: int
) -> tuple[dict[str, TreeScores], dict[str, float]]:
    """Scores by name, and the mean and standard deviation of random trees' F1 over seeds 0, 1, ...

    Returns:
        (scores; of random trees those of seed 0, {"mean", "deviation"} of their sentence F1).
    """
    lengths = [len(tree.words) for tree in gold]
    scores = {
        "left branching": score_trees(gold, [left_branching(n) for n in lengths]),
        "right branching": score_trees(gold, [right_branching(n) for n in lengths]),
        "balanced": score_trees(gold, [balanced(n) for n in lengths]),
    }
    drawn = []
    for seed in range(num_random):
        source = random.Random(seed)
        drawn.append(score_trees(gold, [random_tree(n, source) for n in lengths]))
    scores["random"] = drawn[0]
    scores["oracle"] = score_trees(gold, [best_binary(tree) for tree in gold])
    f1 = [score.sentence_f1 for score in drawn]
    return scores, {"mean": statistics.fmean(f1), "deviation": statistics.pstdev(f1)}
