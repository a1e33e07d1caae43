"""Trees from where punctuation falls: counts by hand, the best tree against all trees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_model import make_model

from gpst.batch import ContextBatch
from gpst.chart import phrase_edges
from gpst.chart.decode import decode, trees_of
from gpst.chart.layout import build_layout
from gpst.chart.phrase_edges import CLOSING, OPENING, WORD, PhraseEdges

THE, OF, DOG, ROOM, BARKS, COMMA, BRACKET, STOP = range(8)
KINDS = np.array([WORD] * 5 + [CLOSING, OPENING, CLOSING], np.int8)
TEXT = [
    [THE, DOG, COMMA, OF, THE, ROOM, STOP],
    [THE, ROOM, OF, THE, DOG, BARKS],
    [BRACKET, THE, DOG, BARKS, STOP],
] * 6  # so that a pair is seen often enough to be kept


def flat(sentences):
    tokens = np.array([token for sentence in sentences for token in sentence], np.int64)
    return tokens, np.cumsum([len(s) for s in sentences], dtype=np.int64)


@pytest.fixture(scope="module")
def edges():
    return PhraseEdges.count(KINDS, *flat(TEXT))


def spans(edges, sentence):
    """The tree of the window-1 chart, as spans of two tokens and more."""
    tokens, ends = flat([sentence])
    layout = build_layout(edges.boundary_scores(tokens, ends), ends, 1)
    tree = trees_of(layout, decode(layout, torch.zeros(len(layout.parent))))[0]
    return set(tree.internal_spans)


def test_shares_by_hand(edges):
    # 14 words in three sentences; an edge follows dog, room, barks and barks.
    overall = 4 / 14
    dog = (6 * 1 + 5 * overall) / (6 * 3 + 5)
    assert edges.end.words[DOG] == pytest.approx(math.log(dog), abs=1e-6)
    of = (6 * 1 + 5 * overall) / (6 * 2 + 5)
    assert edges.start.words[OF] == pytest.approx(math.log(of), abs=1e-6)
    # "the dog" 18 times, 6 of them before an edge.
    key = (THE + 1) * len(KINDS) + DOG
    value = edges.end.pair_values[edges.end.pairs.tolist().index(key)]
    assert value == pytest.approx(math.log((6 + 20 * dog) / (18 + 20)), abs=1e-6)


def test_rare_pairs_are_left_to_the_word():
    few = PhraseEdges.count(KINDS, *flat(TEXT[:3]))
    assert len(few.end.pairs) == len(few.start.pairs) == 0


def all_trees(i, j):
    if i == j:
        yield frozenset()
    for k in range(i, j):
        for left in all_trees(i, k):
            for right in all_trees(k + 1, j):
                yield left | right | {(i, j)}


@pytest.mark.parametrize("seed", range(6))
def test_the_tree_is_the_best_of_all(edges, seed):
    size = 2 + seed
    sentence = np.random.default_rng(seed).integers(0, len(KINDS), size).tolist()
    tokens, _ = flat([sentence])
    sides = (edges.end.words, edges.end.pairs, edges.end.pair_values)
    sides += (edges.start.words, edges.start.pairs, edges.start.pair_values)
    end, start = phrase_edges._edge_scores(KINDS, *sides, tokens)

    def total(tree):
        return sum(float(end[j]) + float(start[i]) for i, j in tree)

    best = max(total(tree) for tree in all_trees(0, size - 1))
    assert total(spans(edges, sentence)) == pytest.approx(best, abs=1e-4)


def test_punctuation_goes_with_what_it_closes_or_opens(edges):
    tree = spans(edges, [THE, DOG, COMMA, BRACKET, THE, ROOM, STOP])
    assert not any(j == 3 and i < j for i, j in tree)  # nothing ends with the bracket
    assert not any(i in (2, 6) and i < j for i, j in tree)  # nothing begins with , or .


def test_of_the_room_is_a_phrase(edges):
    assert {(2, 4), (3, 4)} <= spans(edges, [THE, ROOM, OF, THE, DOG])


def test_sentences_are_by_themselves(edges):
    one, two = [THE, DOG, BARKS], [OF, THE, ROOM, COMMA, THE, DOG]
    tokens, ends = flat([one, [DOG], two])
    scores = edges.boundary_scores(tokens, ends)
    alone = [edges.boundary_scores(*flat([s])) for s in (one, [DOG], two)]
    assert np.array_equal(scores, np.concatenate(alone))


def test_they_order_the_chart_of_training_and_the_parser_learns_from_it():
    model = make_model().eval()
    contexts = [[[1, 2, 3, 4, 5], [3, 1]]]
    plain = ContextBatch.from_sentences(contexts)
    scores = np.array([0, -3, -1, -2, 0, 0, 0], np.float32)
    batch = ContextBatch(
        plain.tokens, plain.sentence_ends, plain.context_ends, boundary_scores=scores
    )
    with torch.no_grad():
        layout = model.layout(batch, torch.from_numpy(scores))
        given, own = model(plain, layout=layout).losses, model(batch, noise=5.0).losses
    assert {n: float(t.sum) for n, t in given.items()} == {n: float(t.sum) for n, t in own.items()}
    with pytest.raises(ValueError, match=r"boundary_scores is \(3,\) of 7 tokens"):
        ContextBatch(
            plain.tokens, plain.sentence_ends, plain.context_ends, boundary_scores=scores[:3]
        )
