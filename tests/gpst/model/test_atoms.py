"""Words of several pieces: trees and losses over atoms, against the slow recursive form."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from chart_oracle import cuts
from known_trees import splits_of
from slow_gpst import SlowLosses, assert_close
from small_model import make_contexts, make_model

from gpst.batch import ContextBatch

ATOMS = [[1, 1, 3, 1, 1, 2], [1, 2, 1]]
"""Tokens of each word of sentences of 9 and 4 tokens."""
RULES = ["constrain_tree", "constrain_chart"]


def with_atoms(contexts, rule) -> ContextBatch:
    ends = [set(accumulate(words)) for words in ATOMS]
    inside_word = [[k + 1 not in own for k in range(max(own))] for own in ends]
    return ContextBatch.from_sentences(contexts, [inside_word], rule)


@pytest.mark.parametrize("rule", RULES)
def test_trees_over_atoms_are_those_of_the_slow_form(rule):
    model, contexts = make_model(), make_contexts([[9, 4]])
    found = model.induced_trees(with_atoms(contexts, rule))
    slow, expected = SlowLosses(model, contexts), []
    for tokens, words in zip(contexts[0], ATOMS, strict=True):
        own, _ = slow.sentence(tokens, live=True)
        ends = list(accumulate(words))
        atoms = [(end - size, end - 1) for end, size in zip(ends, words, strict=True)]
        may_cross = rule == "constrain_tree"
        expected.append(replace(own, atoms=atoms, may_cross=may_cross).tree())
    assert found == expected
    assert {(2, 4), (7, 8)} <= set(found[0].spans)
    assert (1, 2) in found[1].spans


@pytest.mark.parametrize("rule", RULES)
def test_atoms_shape_what_is_trained_on(rule):
    model, contexts = make_model(), make_contexts([[9, 4]])
    plain, batch = ContextBatch.from_sentences(contexts), with_atoms(contexts, rule)
    assert batch.inside_word is not None
    assert np.flatnonzero(batch.inside_word).tolist() == [2, 3, 7, 10]

    layout = model.layout(batch, model.parser(batch).detach())

    spans = {(int(i), int(j)) for i, j in layout.spans}
    atoms = ((2, 4), (7, 8), (10, 11))
    assert set(atoms) <= spans
    crossing = [(i, j) for a, b in atoms for i, j in spans if i < a <= j < b or a < i <= b < j]
    assert bool(crossing) == (rule == "constrain_tree")
    assert bool(len(layout.cutting)) == (rule == "constrain_tree")
    assert_close(
        {name: term.sum for name, term in model(batch).losses.items()},
        {name: term.sum for name, term in model(plain, layout=layout).losses.items()},
    )
    assert model(batch).sizes["cells"] == layout.num_cells
    with pytest.raises(ValueError, match=r"inside_word is \(3,\) of 13 tokens"):
        replace(plain, inside_word=np.zeros(3, bool))


@pytest.mark.parametrize("rule", RULES)
def test_agreement_is_with_the_best_split_that_a_tree_may_take(rule):
    model, contexts = make_model(), make_contexts([[40]])
    inside_word = [k % 3 == 1 for k in range(40)]
    batch = ContextBatch.from_sentences(contexts, [[inside_word]], rule)
    own, _ = SlowLosses(model, contexts).sentence(contexts[0][0], live=True)
    atoms = [(k, k + 1) for k in range(39) if inside_word[k]]
    atoms = sorted([*atoms, *((k, k) for k in range(40) if k % 3 == 0)])
    own = replace(own, atoms=atoms, may_cross=rule == "constrain_tree")
    agreeing = 0
    for (i, j), k in splits_of(own.tree()):
        allowed = [s for s in own.chart[i, j] if not any(cuts((i, j), s, a) for a in atoms)]
        agreeing += own.boundary_scores[k] == max(own.boundary_scores[s] for s in allowed)
    assert model(batch).statistics["agreement"].sum.item() == agreeing
