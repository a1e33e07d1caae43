"""Trees from where punctuation falls.

A constituent begins and ends where punctuation could stand: nouns often come before a comma, `of`
and `the` never do, and `of` comes after one much more often than `corner`. With

    follows(w)  = log p(an edge follows w | w and the word before it)
    precedes(w) = log p(an edge precedes w | w and the word after it)

where an edge is punctuation or the sentence's end, a span scores

    follows(last) + 0.25 precedes(first)          what its own words say of its edges
    + 0.2 precedes(next) + 0.1 follows(previous)  what the words around it say of them
    - log(number of its splits)                   all are equally probable before a word is seen

and the tree is the one that has most spans right in expectation (expected_spans.py). The idea that
punctuation brackets raw text is that of Ponvert et al. (2011), the probability of splits that of
Klein and Manning (2002). This goes beyond the paper, in which the parser alone orders the chart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int8, Int64

from gpst.chart.expected_spans import best_splits, span_probabilities
from gpst.jit.compiled import compiled

WORD, CLOSING, OPENING = 0, 1, 2
"""Kinds of tokens; opening punctuation belongs to what follows, other to what comes before."""
START, NEXT, PREVIOUS = 0.25, 0.2, 0.1
"""What other words say of a span's edges, where what the last one says counts 1: chosen on
validation trees, as FIRST was (benchmarks/LOG.md)."""
FIRST = -1.0
"""Score of a span's beginning at the sentence's first word: right branching where nothing tells."""
NEVER = -10.0
"""No span ends with opening or begins with closing punctuation."""
_WORD_PRIOR = 5.0
"""The share of all words counts for so many occurrences of a word."""
_PAIR_PRIOR = 20.0
"""The word's share counts for so many occurrences of it beside a certain neighbour."""
_FEWEST = 5
"""A pair that occurs less often is left to the word."""


@dataclass(frozen=True)
class Side:
    """Logarithms of how often an edge lies on one side of words: after them, or before them."""

    words: Float32[np.ndarray, "V"]
    pairs: Int64[np.ndarray, "P"]
    """Of a word and its neighbour on the other side, (neighbour + 1) V + word, rising."""
    pair_values: Float32[np.ndarray, "P"]


@dataclass(frozen=True)
class PhraseEdges:
    """How often words end and begin what punctuation sets apart.

    Args:
        kinds: WORD, CLOSING or OPENING of each token id.
    """

    kinds: Int8[np.ndarray, "V"]
    end: Side
    start: Side

    @classmethod
    def count(
        cls,
        kinds: Int8[np.ndarray, "V"],
        tokens: Int64[np.ndarray, "N"],
        sentence_ends: Int64[np.ndarray, "S"],
    ) -> PhraseEdges:
        """From text: token ids of all sentences, and the number of tokens up to each one's end."""
        before, words, after = _neighbours(kinds, tokens, sentence_ends)
        end = _side(len(kinds), words, before, after < 0)
        return cls(kinds, end, _side(len(kinds), words, after, before < 0))

    def boundary_scores(
        self, tokens: Int64[np.ndarray, "N"], sentence_ends: Int64[np.ndarray, "S"]
    ) -> Float32[np.ndarray, "N"]:
        """A score of the boundary after each token, whose window-1 chart holds the best tree."""
        scores = np.zeros(len(tokens), np.float32)
        sides = (*_arrays(self.end), *_arrays(self.start))
        _best_trees(self.kinds, *sides, tokens, sentence_ends, scores)
        return scores


def _arrays(side: Side) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return side.words, side.pairs, side.pair_values


@compiled
def _word_at(kinds, tokens, place):
    """The word at a place of a sentence; -1 beyond its edges and at punctuation."""
    if 0 <= place < len(tokens) and kinds[tokens[place]] == WORD:
        return tokens[place]
    return -1


@compiled
def _neighbours(kinds, tokens, sentence_ends):
    """Of every word the word before and the word after it, -1 where an edge lies between."""
    before = np.empty(len(tokens), np.int64)
    words = np.empty(len(tokens), np.int64)
    after = np.empty(len(tokens), np.int64)
    count, first = 0, 0
    for last in sentence_ends:
        sentence = tokens[first:last]
        for place in range(len(sentence)):
            if kinds[sentence[place]] != WORD:
                continue
            before[count] = _word_at(kinds, sentence, place - 1)
            words[count] = sentence[place]
            after[count] = _word_at(kinds, sentence, place + 1)
            count += 1
        first = last
    return before[:count], words[:count], after[:count]


def _side(size: int, words: np.ndarray, neighbours: np.ndarray, at_edge: np.ndarray) -> Side:
    """Shares of the occurrences that are at an edge, drawn towards the share of all words."""
    occurrences = np.bincount(words, minlength=size)
    edges = np.bincount(words, at_edge, size)
    overall = max(edges.sum(), 1.0) / max(len(words), 1)
    share = (edges + _WORD_PRIOR * overall) / (occurrences + _WORD_PRIOR)
    keys, place, counts = np.unique(
        (neighbours + 1) * size + words, return_inverse=True, return_counts=True
    )
    pair_edges = np.bincount(place, at_edge, len(keys))
    pair_share = (pair_edges + _PAIR_PRIOR * share[keys % size]) / (counts + _PAIR_PRIOR)
    kept = counts >= _FEWEST
    return Side(
        np.log(share).astype(np.float32),
        keys[kept],
        np.log(pair_share[kept]).astype(np.float32),
    )


@compiled
def _look_up(words, pairs, values, word, neighbour):
    key = (neighbour + 1) * len(words) + word
    place = np.searchsorted(pairs, key)
    if place < len(pairs) and pairs[place] == key:
        return values[place]
    return words[word]


@compiled
def _edge_scores(kinds, ends, end_pairs, end_values, starts, start_pairs, start_values, tokens):
    """What each token of a sentence gives as the last, as the first of a span."""
    size = len(tokens)
    follows, precedes = np.zeros(size), np.zeros(size)
    for place in range(size):
        token = tokens[place]
        if kinds[token] == WORD:
            left = _word_at(kinds, tokens, place - 1)
            right = _word_at(kinds, tokens, place + 1)
            follows[place] = _look_up(ends, end_pairs, end_values, token, left)
            if place == 0 or kinds[tokens[place - 1]] != CLOSING:
                precedes[place] = _look_up(starts, start_pairs, start_values, token, right)
    end, start = follows.copy(), START * precedes
    end[:-1] += NEXT * precedes[1:]
    start[1:] += PREVIOUS * follows[:-1]
    for place in range(size):
        if kinds[tokens[place]] == OPENING:
            end[place] = NEVER
        elif kinds[tokens[place]] == CLOSING:
            start[place] = NEVER
    end[size - 1], start[0] = 0.0, FIRST
    return end, start


@compiled
def _span_scores(end, start):
    """The score of each span of two tokens and more, by its first and its last."""
    size = len(end)
    scores = np.zeros((size, size))
    for i in range(size):
        for j in range(i + 1, size):
            scores[i, j] = end[j] + start[i] - np.log(j - i)
    return scores


@compiled
def _best_trees(
    kinds, ends, end_pairs, end_values, starts, start_pairs, start_values, tokens, sentence_ends,
    scores,
):  # fmt: skip
    """Fills the scores: minus the depth of each split in its sentence's tree."""
    first = 0
    for last in sentence_ends:
        end, start = _edge_scores(
            kinds, ends, end_pairs, end_values, starts, start_pairs, start_values,
            tokens[first:last],
        )  # fmt: skip
        cut = best_splits(span_probabilities(_span_scores(end, start)))
        work = [(0, last - first - 1, 0)]
        while len(work) > 0:
            i, j, depth = work.pop()
            if i < j:
                k = cut[i, j]
                scores[first + k] = -depth
                work.append((i, k, depth + 1))
                work.append((k + 1, j, depth + 1))
        first = last
