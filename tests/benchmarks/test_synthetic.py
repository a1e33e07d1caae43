"""Structure learning on languages whose trees are known (benchmarks/synthetic_*.py)."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from benchmarks.synthetic_grammar import (
    Settings,
    by_length_and_label,
    inside_spans,
    make_model,
    one_by_one,
    train,
    training_batches,
)
from benchmarks.synthetic_languages import LANGUAGES, phrases
from benchmarks.synthetic_neighbours import Neighbours, split_at_lowest
from benchmarks.synthetic_objective import boundary_scores, charts_of
from pipeline.evaluate.grammar_induction.baselines import baseline_scores, best_binary
from pipeline.evaluate.grammar_induction.f1 import score_trees
from pipeline.treebank import GoldTree


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_sentence_has_one_tree(name: str) -> None:
    language = LANGUAGES[name]()
    trees = language.held_out(40)

    assert {word for tree in trees for word in tree.words} <= set(language.vocabulary)
    assert len(set(language.vocabulary)) == len(language.vocabulary)
    assert all(language.shortest <= len(tree.words) <= language.longest for tree in trees)
    assert [language.num_trees(tree.words) for tree in trees] == [1] * 40


def test_the_three_languages_of_the_docs_have_30_words() -> None:
    names = ("phrases", "clauses", "clauses, no agreement")
    assert [len(LANGUAGES[name]().vocabulary) - 1 for name in names] == [30, 30, 30]


def test_what_the_grammar_does_not_make_has_no_tree() -> None:
    language = phrases()
    assert language.num_trees(["o0x", "c0y", "o1x", "c1x"]) == 1
    assert language.num_trees(["o0x", "c0x", "o1x", "c0x"]) == 0


def test_gold_constituents_open_and_close_with_the_same_kind() -> None:
    language = phrases()
    source = random.Random(3)
    seen = 0
    for tree in (language.sample(source) for _ in range(40)):
        for c in tree.constituents:
            if c.label.startswith("P"):
                seen += 1
                assert tree.words[c.start] in language.classes[f"O{c.label[1]}"]
                assert tree.words[c.end] in language.classes[f"C{c.label[1]}"]
    assert seen > 100


def test_training_text_is_new_in_every_batch_and_the_same_for_a_seed() -> None:
    settings = Settings(batch_tokens=200, context_tokens=32)
    batches = training_batches(settings, phrases(), 1)
    first, second = next(batches).batch, next(batches).batch
    again = next(training_batches(settings, phrases(), 1))

    assert first.tokens.tolist() == again.batch.tokens.tolist() != second.tokens.tolist()
    assert 200 <= first.num_tokens < 200 + phrases().longest
    assert int(first.context_lengths.max()) <= 32
    assert first.sentence_lengths.tolist() == [len(tree.words) for tree in again.trees]


def test_found_spans_are_told_by_length_and_label() -> None:
    language = phrases()
    trees = language.held_out(30)

    perfect = by_length_and_label(language, trees, [list(tree.spans()) for tree in trees])
    nothing = by_length_and_label(language, trees, [[] for _ in trees])

    assert list(perfect["f1_by_length"]) == ["6", "8", "10", "12", "14"]
    assert list(perfect["recall_by_label"]) == ["P0", "P1", "P2", "P3", "P4", "Q"]
    assert set(perfect["recall_by_label"].values()) == {100.0}
    assert set(nothing["recall_by_label"].values()) == {0.0}


def test_scores_of_a_given_tree() -> None:
    """((a b) (c (d e))): minus the depth of the node that a boundary splits."""
    scores = boundary_scores([(0, 4), (0, 1), (2, 4), (3, 4)], 5)
    assert scores.tolist() == [-1.0, 0.0, -1.0, -2.0, 0.0]
    assert boundary_scores([], 1).tolist() == [0.0]


def test_a_chart_of_given_trees_holds_nothing_else() -> None:
    language = LANGUAGES["clauses"]()
    sentences = one_by_one(language, language.held_out(20))
    model = make_model(Settings(language="clauses", window=1), language)

    layout = charts_of(lambda s: [best_binary(tree) for tree in s.trees])(model, sentences)

    assert layout is not None
    starts = np.cumsum([0, *(len(tree.words) for tree in sentences.trees)])
    wanted = {
        (int(start) + i, int(start) + j)
        for start, tree in zip(starts, sentences.trees, strict=False)
        for i, j in best_binary(tree)
    }
    assert {tuple(span) for span in layout.spans[layout.num_tokens :].tolist()} == wanted
    assert layout.num_cells == 2 * layout.num_tokens - len(sentences.trees)


def test_pmi_of_neighbours_by_hand() -> None:
    """a b twice, a c and d c once: of 4 pairs, a is first in 3, b second in 2, c in 2."""
    trees = [GoldTree(tuple(words), ("", ""), ()) for words in ("ab", "ab", "ac", "dc")]
    neighbours = Neighbours(trees)

    told = neighbours.pmi(GoldTree(("a", "b", "a", "c"), ("",) * 4, ()))

    assert told == pytest.approx([np.log(2 * 4 / (3 * 2)), -9.0, np.log(4 / (3 * 2))])
    assert split_at_lowest(told) == [(0, 3), (0, 1), (2, 3)]


@pytest.mark.slow
def test_a_tiny_gpst_finds_the_trees() -> None:
    """Two seeds reached 63.3 and 70.0, the best trivial trees 26.1 (docs/structure_learning.md)."""
    language = phrases()
    held_out = language.held_out(200)
    baselines, _ = baseline_scores(held_out, 3)
    trivial = max(score.sentence_f1 for name, score in baselines.items() if name != "oracle")

    found = []
    for seed in range(2):
        model, curve = train(Settings(evaluate_every=300), seed, held_out)
        spans = inside_spans(model, language, held_out)
        found.append(score_trees(held_out, spans).sentence_f1)
        assert found[-1] == pytest.approx(curve[-1]["f1"], abs=0.01)

    assert statistics.fmean(found) > trivial + 30.0, found
    assert min(found) > trivial + 20.0, found
