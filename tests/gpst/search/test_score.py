"""Probabilities of tokens: they sum to 1 whatever the beam, multiply, and are the model's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpst.search.batches import in_order, score_batches
from gpst.search.parse import search_text
from gpst.search.score import score_text
from gpst.search.words import ENDS, GOES_ON, OPEN, WordSearch

CONTEXT = [[1, 2, 3, 4, 1], [5], [2, 3]]
HUGE = 300
COMP = -1


def prefix(context: list[list[int]], number: int) -> list[list[int]]:
    """The first tokens of a context."""
    shorter = []
    for sentence in context:
        if number > 0:
            shorter.append(sentence[:number])
            number -= len(sentence)
    return shorter


@pytest.mark.parametrize("beam", [1, 3])
def test_the_next_tokens_probabilities_sum_to_one_at_twenty_places(tiny, beam):
    model, rng = tiny(), np.random.default_rng(0)
    vocabulary = range(model.config.vocab_size)
    sentence = rng.integers(0, model.config.vocab_size, 20).tolist()
    contexts = [[[*sentence[:n], token]] for n in range(20) for token in vocabulary]
    scores = in_order(score_batches(model, contexts, beam=beam))
    last = np.array([score.log_p[-1] for score in scores]).reshape(20, -1)
    assert np.exp(last).sum(1) == pytest.approx(np.ones(20), abs=1e-6)


def test_quotients_of_prefix_probabilities_lose_what_the_beam_drops(tiny):
    model, rng = tiny(), np.random.default_rng(0)
    sentence = rng.integers(0, model.config.vocab_size, 12).tolist()
    contexts = [[[*sentence, token]] for token in range(model.config.vocab_size)]
    results = search_text(model, contexts, beam=3)
    assert sum(0.5 ** result.quotient_surprisals[-1] for result in results) < 0.9


@pytest.mark.parametrize("beam", [2, 20])
def test_the_chain_rule_holds_and_the_past_does_not_know_the_future(tiny, beam):
    model = tiny(3)
    [whole] = score_text(model, [CONTEXT], beam=beam)
    for number in range(1, 9):
        [part] = score_text(model, [prefix(CONTEXT, number)], beam=beam)
        assert part.log_p == pytest.approx(whole.log_p[:number], abs=1e-9)
    assert whole.surprisals.sum() == pytest.approx(-whole.log_p.sum() / np.log(2))


@pytest.mark.parametrize("beam", [1, 4])
def test_at_the_start_of_a_sentence_they_sum_to_the_probability_that_one_ended(tiny, beam):
    model = tiny(2)
    vocabulary = range(model.config.vocab_size)
    before = [[3, 1, 4, 2], [5, 2, 5]]
    begins = score_text(model, [[*before, [token]] for token in vocabulary], beam=beam)
    [ended] = score_text(model, [before], beam=beam)
    total = np.logaddexp.reduce([score.log_p[-1] for score in begins])
    assert total == pytest.approx(ended.closing_log_p, abs=1e-9)
    assert total < -1e-3


def test_a_large_beam_gives_the_models_own_probabilities(tiny, oracle_of, logsum):
    model = tiny(1)
    oracle = oracle_of(model)
    [score] = score_text(model, [CONTEXT], beam=HUGE, sentence_beam=HUGE)
    expected = oracle.prefixes(CONTEXT, sure=True)
    assert score.log_p.cumsum() == pytest.approx(expected, abs=1e-5)
    whole = logsum(oracle.log_p(actions, CONTEXT) for actions in oracle.sequences(CONTEXT))
    assert score.log_p.sum() + score.closing_log_p == pytest.approx(whole, abs=1e-5)


def test_one_hypothesis_carries_the_weight_of_all_into_a_further_sentence(tiny, oracle_of, logsum):
    model = tiny(7)
    oracle = oracle_of(model)
    context = [[1, 2, 3, 4], [2, 5, 1], [3, 3]]

    def prefixes(group, tokens):
        """Their beginnings up to GEN of the given number of tokens."""
        found = set()
        for actions in group:
            ends = [t for t, action in enumerate(actions) if action != COMP]
            found.add(actions[: ends[tokens - 1] + 1])
        return found

    expected, shift, group = [], 0.0, list(oracle.sequences(context))
    for words in range(1, 10):
        scores = {actions: oracle.log_p(actions, context) for actions in prefixes(group, words)}
        total = shift + logsum(scores.values())
        expected.append(total)
        if words in (5, 8):  # the first token of a further sentence
            best = max(scores, key=lambda actions: scores[actions])
            group = [actions for actions in group if actions[: len(best)] == best]
            shift = total - scores[best]
    [score] = score_text(model, [context], beam=HUGE)
    assert score.log_p.cumsum() == pytest.approx(expected, abs=1e-5)
    closed = shift + logsum(oracle.log_p(actions, context) for actions in group)
    assert score.log_p.sum() + score.closing_log_p == pytest.approx(closed, abs=1e-5)
    [both, _] = score_text(model, [context, context[:1]], beam=HUGE)
    assert both.log_p == pytest.approx(score.log_p, abs=1e-9)


def test_a_row_of_a_batch_is_a_batch_of_one(tiny):
    # Dead hypotheses of a short context are filled up again and again while a longer one goes on.
    model = tiny(8, max_context_tokens=40)
    rng = np.random.default_rng(5)
    contexts = [
        [rng.integers(0, 6, n).tolist() for n in lengths]
        for lengths in ([6, 2, 7, 1, 9, 5, 10], [1, 1], [4, 1, 1, 3, 2, 8], [2, 14, 6, 5])
    ]
    together = score_text(model, contexts, beam=6, compare=True)
    for context, score in zip(contexts, together, strict=True):
        [alone] = score_text(model, [context], beam=6, compare=True)
        assert alone.log_p == pytest.approx(score.log_p, abs=1e-9)
        assert alone.closing_log_p == pytest.approx(score.closing_log_p, abs=1e-9)
        assert alone.most_probable.tolist() == score.most_probable.tolist()


def test_what_is_asked_before_a_token_is_what_it_is_given(tiny):
    model = tiny(4)
    [score] = score_text(model, [CONTEXT], beam=5, compare=True)
    flat = [token for sentence in CONTEXT for token in sentence]
    ends = np.cumsum([len(sentence) for sentence in CONTEXT])
    search = WordSearch(model, 1, 5)
    everywhere = torch.tensor([True])
    with torch.no_grad():
        for number, token in enumerate(flat):
            place = torch.tensor([ENDS if number in ends else GOES_ON])
            while not bool(search.ready.all()):
                search.go_up(place, everywhere)
            search.look(everywhere)
            asked, before = search.next_log_p()[0], float(search.log_p)
            assert float(asked.logsumexp(0)) == pytest.approx(0.0, abs=1e-9)
            assert (int(asked.argmax()) == token) == bool(score.most_probable[number])
            search.write(torch.tensor([token]))
            assert float(search.log_p) - before == pytest.approx(float(asked[token]), abs=1e-9)
            with pytest.raises(RuntimeError, match=r"look\(\) comes before"):
                search.next_log_p()
    assert float(search.log_p) == pytest.approx(score.log_p.sum(), abs=1e-9)


def test_where_ends_are_not_known_hypotheses_find_them(tiny):
    # Between texts that go on and texts that end lies the text of which nothing is known.
    model = tiny(6)
    tokens = [1, 2, 3, 4, 1]

    @torch.no_grad()
    def log_p(places: list[int], final: list[int]) -> float:
        search = WordSearch(model, 1, HUGE, final_tokens=final, sentence_beam=HUGE)
        everywhere = torch.tensor([True])
        for place, token in zip(places, tokens, strict=True):
            while not bool(search.ready.all()):
                search.go_up(torch.tensor([place]), everywhere)
            search.look(everywhere)
            search.write(torch.tensor([token]))
        return float(search.log_p)

    goes_on = log_p([GOES_ON] * 5, [3])
    assert log_p([OPEN] * 5, []) == pytest.approx(goes_on, abs=1e-9)
    ends = log_p([GOES_ON, GOES_ON, GOES_ON, ENDS, GOES_ON], [])
    unknown = log_p([OPEN] * 5, [3])
    assert ends < unknown
    assert unknown != pytest.approx(goes_on, abs=1e-6)
    # Up to the first token after it, ending or not is a matter of what comes later.
    tokens = tokens[:4]
    assert log_p([OPEN] * 4, [3]) == pytest.approx(log_p([GOES_ON] * 4, []), abs=1e-9)


def test_what_cannot_be_scored_is_named(tiny):
    model = tiny()
    for beams in ({"beam": 0}, {"sentence_beam": 0}):
        with pytest.raises(ValueError, match=rf"{next(iter(beams))}: 0 is not allowed"):
            score_text(model, [CONTEXT], **beams)
    with pytest.raises(ValueError, match="at least one context"):
        score_text(model, [])
    with pytest.raises(ValueError, match="every sentence a token"):
        score_text(model, [[[1], []]])
    with pytest.raises(ValueError, match="65 tokens, but the model takes 64"):
        score_text(model, [[[1] * 65]])
