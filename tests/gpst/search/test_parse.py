"""Search over the trees of given texts against enumeration and against training's own losses."""

import numpy as np
import pytest
import torch
from actions import actions_of

from gpst.batch import ContextBatch
from gpst.model.losses import total_loss
from gpst.search.candidates import COMP
from gpst.search.parse import read_prompt, search_text
from gpst.search.precision import multiply_in
from gpst.tree import Tree

CONTEXT = [[1, 2, 3, 4, 1], [5], [2, 3]]
HUGE = 300


def sequence(trees: list[Tree], context: list[list[int]]) -> tuple[int, ...]:
    """Tokens and COMP that build the trees."""
    found: list[int] = []
    for tree, tokens in zip(trees, context, strict=True):
        words = iter(tokens)
        found += [COMP if action else next(words) for action in actions_of(tree)]
    return tuple(found)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("read", [{}, {"surrogate": False}, {"last_word": True}], ids=str)
@pytest.mark.parametrize("context", [CONTEXT, [[3]], [[1, 1]], [[4, 2, 1], [0, 5, 5]]])
def test_large_beam_finds_what_enumeration_finds(tiny, oracle_of, logsum, context, read, sync):
    model = tiny(**read)
    oracle = oracle_of(model)
    scores = {actions: oracle.log_p(actions) for actions in oracle.sequences(context)}
    [result] = search_text(model, [context], beam=HUGE, sync=sync, num_best=HUGE)
    assert result.log_p == pytest.approx(logsum(scores.values()), abs=1e-5)
    assert len(result.parses) == len(scores)
    for parse in result.parses:
        assert parse.log_p == pytest.approx(scores[sequence(parse.trees, context)], abs=1e-5)
    best = sequence(result.parses[0].trees, context)
    assert scores[best] == pytest.approx(max(scores.values()), abs=1e-5)
    assert [p.log_p for p in result.parses] == sorted(p.log_p for p in result.parses)[::-1]


def test_prefix_probabilities_are_sums_over_all_histories(tiny, oracle_of):
    model = tiny(1)
    expected = oracle_of(model).prefixes(CONTEXT)
    [result] = search_text(model, [CONTEXT], beam=HUGE)
    assert result.prefix_log_p == pytest.approx(expected, abs=1e-5)
    surprisal = -np.diff([0.0, *expected]) / np.log(2)
    assert result.quotient_surprisals == pytest.approx(surprisal, abs=1e-4)
    assert result.log_p < result.prefix_log_p[-1]


def test_action_level_search_has_no_prefix_probabilities(tiny):
    [result] = search_text(tiny(), [[[1, 2]]], sync=False)
    assert result.prefix_log_p is None
    with pytest.raises(ValueError, match="sync=True"):
        _ = result.quotient_surprisals


@pytest.mark.parametrize("surrogate", [True, False])
@pytest.mark.parametrize("last_word", [True, False])
def test_joint_probability_is_trainings_type_and_token_loss(tiny, surrogate, last_word):
    # With a window of 1 every cell has one split, so that training composes in a one-hot manner.
    model = tiny(2, surrogate=surrogate, last_word=last_word, composition={"window": 1})
    contexts = [CONTEXT, [[4, 4, 2, 1, 3, 5]], [[2], [1, 5]]]
    batch = ContextBatch.from_sentences(contexts)
    trees = iter(model.induced_trees(batch))
    for context in contexts:
        own = [next(trees) for _ in context]
        with torch.no_grad():
            losses = model(ContextBatch.from_sentences([context])).losses
        expected = -float(losses["token"].sum + losses["type"].sum)
        [result] = search_text(model, [context], beam=HUGE, num_best=HUGE)
        [found] = [p for p in result.parses if p.trees == own]
        assert found.log_p == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "atoms",
    [
        [[True, False, False, True, False], [False], [True, False]],
        [[False, True, True, False, False], [False], [False, False]],
        [[True, True, True, True, False], [False], [False, False]],
    ],
)
@pytest.mark.parametrize("sync", [True, False])
def test_atoms_become_constituents(tiny, oracle_of, logsum, atoms, sync):
    model = tiny(3)
    oracle = oracle_of(model)
    allowed = list(oracle.sequences(CONTEXT, atoms))
    assert len(allowed) < 15
    [result] = search_text(
        model, [CONTEXT], beam=HUGE, num_best=HUGE, inside_word=[atoms], sync=sync
    )
    found = {sequence(parse.trees, CONTEXT) for parse in result.parses}
    assert found == set(allowed)
    assert result.log_p == pytest.approx(logsum(map(oracle.log_p, allowed)), abs=1e-5)


def test_a_row_of_a_batch_is_a_batch_of_one(tiny):
    model = tiny(4, max_context_tokens=64)
    rng = np.random.default_rng(0)
    contexts = [
        [rng.integers(0, 6, n).tolist() for n in lengths]
        for lengths in ([3, 17], [1], [9, 1, 4], [30])
    ]
    together = search_text(model, contexts, beam=5)
    for context, result in zip(contexts, together, strict=True):
        [alone] = search_text(model, [context], beam=5)
        assert alone.parses[0].trees == result.parses[0].trees
        assert alone.log_p == pytest.approx(result.log_p, abs=1e-4)
        assert alone.prefix_log_p == pytest.approx(result.prefix_log_p, abs=1e-4)


def test_attention_by_contexts_gives_what_padded_attention_gives(tiny, monkeypatch):
    model = tiny(9, max_context_tokens=64)
    rng = np.random.default_rng(3)
    contexts = [[rng.integers(0, 6, n).tolist()] for n in (4, 11, 19, 26)]
    found = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr("gpst.search.history._PER_CONTEXT", devices)
        found.append(search_text(model, contexts, beam=5))
    for padded, apart in zip(*found, strict=True):
        assert padded.parses[0].trees == apart.parses[0].trees
        assert padded.prefix_log_p == pytest.approx(apart.prefix_log_p, abs=1e-9)


@pytest.mark.parametrize("beam", [1, pytest.param(3, marks=pytest.mark.slow), 8])
def test_a_beam_bounds_the_probability_from_below_and_scores_its_trees_rightly(
    tiny, oracle_of, beam
):
    # Long enough that histories are compacted several times.
    model = tiny(5)
    oracle = oracle_of(model)
    tokens = np.random.default_rng(1).integers(0, 6, 40).tolist()
    context = [tokens[:22], tokens[22:]]
    [result] = search_text(model, [context], beam=beam, num_best=beam)
    for parse in result.parses:
        expected = oracle.log_p(sequence(parse.trees, context))
        assert parse.log_p == pytest.approx(expected, abs=1e-4)
    [wider] = search_text(model, [context], beam=64)
    assert result.log_p <= wider.log_p + 1e-6
    assert len(result.parses) == beam


def test_dropout_is_off_and_the_mode_comes_back(tiny):
    model = tiny().train()
    first = search_text(model, [CONTEXT])
    assert model.training
    assert first[0].log_p == search_text(model, [CONTEXT])[0].log_p


def test_a_model_trains_and_searches_after_a_search(tiny):
    """What a search keeps is made without version counters, which gradients need."""
    model, batch = tiny(), ContextBatch.from_sentences([CONTEXT])
    gradients = []
    for _ in range(2):
        model.zero_grad()
        total_loss(model(batch).losses, batch.counts).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        prepared = multiply_in(model, "fp32")
        first = search_text(prepared, [CONTEXT])[0].log_p
        with torch.no_grad():
            assert read_prompt(prepared, [CONTEXT], 20).log_p.logsumexp(1).shape == (1,)
        assert search_text(model, [CONTEXT])[0].log_p == pytest.approx(first, abs=1e-9)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_float32_agrees_with_uncached_float64(tiny, oracle_of):
    model = tiny(6)
    oracle = oracle_of(model)
    scores = {actions: oracle.log_p(actions) for actions in oracle.sequences(CONTEXT)}
    [result] = search_text(tiny(6).to(torch.float32), [CONTEXT], beam=HUGE, num_best=HUGE)
    for parse in result.parses:
        expected = scores[sequence(parse.trees, CONTEXT)]
        assert parse.log_p == pytest.approx(expected, abs=1e-5, rel=1e-6)


def test_bad_input_is_named(tiny):
    model = tiny(max_context_tokens=4)
    with pytest.raises(ValueError, match="5 tokens, but the model takes 4"):
        search_text(model, [[[1, 2, 3], [1, 2]]])
    with pytest.raises(ValueError, match="every sentence a token"):
        search_text(model, [[[1], []]])
    with pytest.raises(ValueError, match="at least one context"):
        search_text(model, [])
    with pytest.raises(ValueError, match="beam: 0"):
        search_text(model, [[[1]]], beam=0)
    with pytest.raises(ValueError, match="atoms"):
        search_text(model, [[[1, 2]]], inside_word=[[[False, True]]])
