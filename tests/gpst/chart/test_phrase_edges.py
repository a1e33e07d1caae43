"""Trees from where punctuation falls: counts and scores by hand, the tree against all trees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_model import make_model
from span_trees import all_trees

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


def values(side):
    pairs = dict(zip(side.pairs.tolist(), side.pair_values.tolist(), strict=True))
    return lambda word, other: pairs.get((other + 1) * len(KINDS) + word, float(side.words[word]))


def slow_score(edges, sentence, i, j):
    """Of the span from i to j, from the formula in phrase_edges.py."""

    def kind(place):
        return KINDS[sentence[place]] if 0 <= place < len(sentence) else None

    def word(place):
        return sentence[place] if kind(place) == WORD else -1

    def follows(place):
        known = kind(place) == WORD
        return values(edges.end)(word(place), word(place - 1)) if known else 0.0

    def precedes(place):
        known = kind(place) == WORD and kind(place - 1) != CLOSING
        return values(edges.start)(word(place), word(place + 1)) if known else 0.0

    end = follows(j) + 0.2 * precedes(j + 1)
    start = 0.25 * precedes(i) + 0.1 * follows(i - 1)
    if kind(j) == OPENING:
        end = -10.0
    if kind(i) == CLOSING:
        start = -10.0
    if j == len(sentence) - 1:
        end = 0.0
    if i == 0:
        start = -1.0
    return end + start - math.log(j - i)


@pytest.mark.parametrize("seed", range(12))
def test_the_tree_has_most_spans_right_in_expectation(edges, seed):
    size = 2 + seed % 6
    sentence = np.random.default_rng(seed).integers(0, len(KINDS), size).tolist()
    trees = list(all_trees(0, size - 1))
    weights = [math.exp(sum(slow_score(edges, sentence, *span) for span in t)) for t in trees]

    def right(tree):
        return sum(w * len(tree & t) for w, t in zip(weights, trees, strict=True)) / sum(weights)

    assert right(spans(edges, sentence)) == pytest.approx(max(map(right, trees)), abs=1e-6)


def test_scores_of_edges_by_hand(edges):
    sides = (edges.end.words, edges.end.pairs, edges.end.pair_values)
    sides += (edges.start.words, edges.start.pairs, edges.start.pair_values)
    tokens, _ = flat([[ROOM, OF, COMMA, DOG]])  # "room of" is common, "of" before a comma is not
    end, start = phrase_edges._edge_scores(KINDS, *sides, tokens)
    # 14 words in a text, counted six times. Edges follow 4 and precede 4 of them; each of the prior
    # counts is as in phrase_edges.py. "room": 1 of 2 before an edge, none after; as the first word
    # it has no neighbour, which is never seen.
    follows_room = math.log((6 + 5 * 4 / 14) / (12 + 5))
    # "of": after an edge 1 of 2, before one none; "room of" is seen six times, without an edge.
    share = (0 + 5 * 4 / 14) / (12 + 5)
    follows_of = math.log((0 + 20 * share) / (6 + 20))
    precedes_of = math.log((6 + 5 * 4 / 14) / (12 + 5))
    assert end[0] == pytest.approx(follows_room + 0.2 * precedes_of, abs=1e-6)
    assert end[1] == pytest.approx(follows_of, abs=1e-6)
    assert start[1] == pytest.approx(0.25 * precedes_of + 0.1 * follows_room, abs=1e-6)
    assert start[0] == phrase_edges.FIRST
    assert start[2] == phrase_edges.NEVER
    assert start[3] == 0.0  # after a comma, and so is end[2]
    assert end[2] == end[3] == 0.0


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
