"""Scores of trees against values worked out by hand."""

from __future__ import annotations

import random

import pytest

from pipeline.errors import DataError
from pipeline.evaluate.grammar_induction.baselines import (
    balanced,
    baseline_scores,
    best_binary,
    left_branching,
    random_tree,
    right_branching,
)
from pipeline.evaluate.grammar_induction.f1 import score_sentence, score_trees
from pipeline.treebank import GoldTree, parse_brackets

# Spans that count: (0, 1), (2, 4), (3, 4).
DOG = parse_brackets("(S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (DT a) (NN cat))))")
# None counts: there is only the whole sentence.
FLAT = parse_brackets("(NP (NN a) (NN b) (NN c))")
PAIR = parse_brackets("(NP (DT the) (NN dog))")
WORD = parse_brackets("(NP (NN dog))")
GOLD = [DOG, FLAT, PAIR, WORD]


def test_right_branching_by_hand() -> None:
    scores = score_trees(GOLD, [right_branching(len(tree.words)) for tree in GOLD])

    # DOG: (1,4) (2,4) (3,4), of which two are right: 2/3. FLAT: (1,2), precision 0: 0. PAIR: 1.
    assert scores.num_sentences == 3
    assert scores.sentence_f1 == pytest.approx(100 * (2 / 3 + 0 + 1) / 3)
    # Spans together: 2 right of 4 predicted and 3 gold.
    assert scores.corpus_precision == pytest.approx(50.0)
    assert scores.corpus_recall == pytest.approx(200 / 3)
    assert scores.corpus_f1 == pytest.approx(400 / 7)
    assert scores.recall_by_label == {
        "NP": 50.0, "VP": 100.0, "PP": None, "SBAR": None, "ADJP": None, "ADVP": None
    }  # fmt: skip
    assert scores.gold_by_label["NP"] == 2


def test_left_branching_and_balanced_by_hand() -> None:
    # (0,1) (0,2) (0,3): one of three, and one of three gold ones.
    assert score_sentence(DOG, left_branching(5)).f1 == pytest.approx(1 / 3)
    # (0,2) (0,1) (3,4): two of three.
    assert balanced(5) == [(0, 4), (0, 2), (0, 1), (3, 4)]
    assert score_sentence(DOG, balanced(5)).f1 == pytest.approx(2 / 3)
    assert balanced(4) == [(0, 3), (0, 1), (2, 3)]


def test_a_prediction_without_spans_scores_nothing_where_gold_has_some() -> None:
    score = score_sentence(DOG, [(0, 4)])

    assert (score.precision, score.recall, score.f1) == (0.0, 0.0, 0.0)
    assert score_sentence(FLAT, [(0, 2)]).f1 == 1.0
    assert score_sentence(FLAT, [(0, 2), (0, 1)]).recall == 1.0


def test_spans_of_a_word_and_the_sentence_change_nothing() -> None:
    bare = score_sentence(DOG, [(0, 1), (0, 2)])

    assert score_sentence(DOG, [(0, 0), (1, 1), (0, 1), (0, 2), (0, 2), (0, 4)]) == bare
    assert (bare.num_common, bare.num_predicted, bare.num_gold) == (1, 2, 3)


def test_f1_by_length_is_cumulative() -> None:
    flat10, flat11, flat30 = (
        parse_brackets("(S " + " ".join(["(N a)"] * size) + ")") for size in (10, 11, 30)
    )

    scores = score_trees([PAIR, flat10, flat11, flat30], [[], [(0, 1)], [], [(0, 5)]])

    # One that is right and one that is wrong: a sentence of exactly 10 words is among the first.
    assert scores.f1_by_length == {"10": 50.0, "20": pytest.approx(200 / 3), "40": 50.0}
    assert score_trees([flat30], [[]]).f1_by_length == {"10": None, "20": None, "40": 100.0}


def test_best_binary_trees_hold_all_gold_spans_and_are_binary() -> None:
    wide = parse_brackets(
        "(S (A (N a) (N b) (N c)) (N d) (B (N e) (C (N f) (N g) (N h))) (N i) (N j))"
    )
    spans = best_binary(wide)

    assert wide.spans() < set(spans)
    assert len(spans) == len(set(spans)) == 9
    # S -> A, then the rest branches to the right.
    assert {(3, 9), (4, 9), (8, 9)} <= set(spans)
    assert best_binary(WORD) == []
    # All 3 gold spans, and (3,9) (4,9) (8,9) (1,2) (6,7) besides: 8 that count.
    scores = score_trees([wide], [spans])
    assert scores.corpus_recall == 100.0
    assert scores.sentence_f1 == pytest.approx(100 * 2 * (3 / 8) / (1 + 3 / 8))


def test_random_trees_are_binary_and_depend_on_the_seed_only() -> None:
    trees = [random_tree(9, random.Random(seed)) for seed in (0, 0, 1)]

    assert trees[0] == trees[1] != trees[2]
    for tree in trees:
        assert len(set(tree)) == 8
        for i, j in tree:
            for k, m in tree:
                assert not (i < k <= j < m)
    # Every split of the whole is drawn: the left part ends at 0, 1 or 2.
    source = random.Random(5)
    drawn = [random_tree(4, source)[1:] for _ in range(60)]
    assert {max([j for i, j in tree if i == 0], default=0) for tree in drawn} == {0, 1, 2}


def test_baselines_of_a_treebank() -> None:
    scores, spread = baseline_scores(GOLD, 4)

    assert set(scores) == {"left branching", "right branching", "balanced", "random", "oracle"}
    assert scores["oracle"].corpus_recall == 100.0
    assert scores["oracle"].sentence_f1 == pytest.approx(100 * (1 + 0 + 1) / 3)
    assert 100 / 3 <= spread["mean"] <= 200 / 3
    assert spread["deviation"] > 0.0


def test_nothing_is_skipped_silently() -> None:
    with pytest.raises(DataError, match="1 trees were predicted for 2 sentences"):
        score_trees([DOG, FLAT], [[]])
    with pytest.raises(DataError, match="no sentence has two words or more"):
        score_trees([WORD, GoldTree((), (), ())], [[], []])
