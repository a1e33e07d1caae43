"""Generation against enumeration of everything that could be written."""

import math
from collections import Counter

import pytest

from gpst.search.candidates import COMP
from gpst.search.generate import generate, replay
from gpst.search.parse import search_text
from gpst.search.sampling import Sampling

FINAL = {5}


def continuations(prompt, new_tokens, vocabulary=6, final=FINAL):
    """All action sequences that read the prompt and end in GEN of the last new token."""
    flat = [token for sentence in prompt for token in sentence]
    boundary = {sum(map(len, prompt[:k])) for k in range(1, len(prompt))}
    total = len(flat) + new_tokens
    found = []

    def grow(actions, height, count, last):
        if count == total:
            found.append(tuple(actions))
            return
        if height > 1:
            grow([*actions, COMP], height - 1, count, last)
        if count in boundary and height > 1:
            return
        begins = count in boundary or (count >= len(flat) and height == 1 and last in final)
        for token in [flat[count]] if count < len(flat) else range(vocabulary):
            grow([*actions, token], 1 if begins else height + 1, count + 1, token)

    grow([], 0, 0, -1)
    return found


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("prompt", "new"), [([], 2), ([[1, 2]], 2), ([[1, 5], [3, 5]], 2), ([[5]], 2)]
)
def test_a_large_beam_finds_the_best_continuations(tiny, oracle_of, prompt, new, sync):
    model = tiny(1)
    oracle = oracle_of(model)
    scores = {actions: oracle.log_p(actions) for actions in continuations(prompt, new)}
    found = generate(
        model,
        prompt,
        max_new_tokens=new,
        final_tokens=FINAL,
        beam=2000,
        sync=sync,
        num_samples=5000,
    )
    assert len(found) == len(scores)
    expected = sorted(scores.values(), reverse=True)
    assert [g.log_p for g in found] == pytest.approx(expected, abs=1e-5)
    best = max(scores, key=lambda actions: scores[actions])
    sentences, trees = replay(best, prompt, FINAL)
    assert (found[0].sentences, found[0].trees) == (sentences, trees)


def test_sampling_draws_from_the_models_distribution(tiny, oracle_of, logsum):
    model = tiny(3)
    oracle = oracle_of(model)
    prompt, number = [[1, 2]], 1500
    start = oracle.log_p((1, 2))
    direct = {token: oracle.log_p((1, 2, token)) - start for token in range(6)}
    joined = {token: oracle.log_p((1, 2, COMP, token)) for token in range(6)}
    # One constituent is left after COMP, so that GEN is then certain.
    log_comp = oracle.log_p((1, 2, COMP)) - start
    joined_total = logsum(joined.values())
    drawn = generate(
        model, prompt, max_new_tokens=1, final_tokens=FINAL, sampling=Sampling(), num_samples=number
    )
    counts = Counter(g.tokens[0] for g in drawn)
    for token in range(6):
        p = math.exp(direct[token]) + math.exp(log_comp + joined[token] - joined_total)
        spread = math.sqrt(p * (1 - p) / number)
        assert counts[token] / number == pytest.approx(p, abs=4 * spread + 1e-9)


def test_samples_are_scored_rightly_and_repeat_with_their_seed(tiny, oracle_of):
    model = tiny(2)
    arguments = {
        "max_new_tokens": 12, "final_tokens": FINAL, "sampling": Sampling(top_p=0.9, seed=3),
        "num_samples": 3,
    }  # fmt: skip
    heard: dict[int, list[int]] = {0: [], 1: [], 2: []}
    found = generate(
        model, [[1, 2, 5], [4]], on_token=lambda k, token: heard[k].append(token), **arguments
    )
    again = generate(model, [[1, 2, 5], [4]], **arguments)
    assert found == again
    assert [heard[k] for k in range(3)] == [g.tokens for g in found]
    for generation in found:
        assert len(generation.tokens) == 12
        assert sum(map(len, generation.sentences)) == 16
        assert generation.sentences[0] == [1, 2, 5]
        for sentence, tree in zip(generation.sentences, generation.trees, strict=True):
            assert tree.num_tokens == len(sentence)
        # The log probability is at least that of its complete trees: closing costs something.
        oracle = oracle_of(model)
        actions: list[int] = []
        for sentence, tree in zip(generation.sentences, generation.trees, strict=True):
            words = iter(sentence)
            actions += [next(words) if i == j else COMP for i, j in tree.spans]
        while actions[-1] == COMP:
            actions.pop()
        assert generation.log_p == pytest.approx(oracle.log_p(tuple(actions)), abs=1e-4)


def test_temperature_zero_takes_the_best_and_top_k_one_too(tiny):
    model = tiny(4)
    cold = generate(
        model, [[1]], max_new_tokens=8, sampling=Sampling(temperature=0, seed=1), num_samples=2
    )
    assert cold[0].tokens == cold[1].tokens
    narrow = generate(
        model, [[1]], max_new_tokens=1, sampling=Sampling(top_k=1), num_samples=20, beam=1
    )
    assert {g.tokens[0] for g in narrow} == {cold[0].tokens[0]}


def test_the_end_token_and_the_full_context_stop(tiny):
    model = tiny(5, max_context_tokens=12)
    for sampling in (None, Sampling(seed=2)):
        [found] = generate(model, [[1, 2]], max_new_tokens=100, sampling=sampling, beam=4)
        assert len(found.tokens) == 10
        options = {"max_new_tokens": 9, "sampling": sampling, "num_samples": 8}
        end = generate(model, [[2, 3]], **options)[0].tokens[2]  # written early for sure
        ended = generate(model, [[2, 3]], end_token=end, **options)
        for generation in ended:
            assert generation.tokens[-1] == end or len(generation.tokens) == 9
            assert end not in generation.tokens[:-1]
        assert any(len(g.tokens) < 9 for g in ended)


def test_beam_one_of_the_search_keeps_a_scored_hypothesis(tiny):
    model = tiny(6)
    [found] = generate(model, [[1, 2, 3]], max_new_tokens=6, beam=1, final_tokens=FINAL)
    [wide] = generate(model, [[1, 2, 3]], max_new_tokens=6, beam=60, final_tokens=FINAL)
    assert found.log_p <= wide.log_p + 1e-6
    [text] = search_text(model, [found.sentences], beam=500)
    assert found.log_p <= text.prefix_log_p[-1] + 1e-6


def test_bad_numbers_are_named(tiny):
    model = tiny(max_context_tokens=3)
    with pytest.raises(ValueError, match="the prompt has 3 tokens; the model takes 3"):
        generate(model, [[1, 2, 3]], max_new_tokens=1)
    with pytest.raises(ValueError, match="max_new_tokens: 0"):
        generate(model, [[1]], max_new_tokens=0)
    for bad, name in (
        ({"temperature": -1}, "temp"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 2}, "top_p"),
    ):
        with pytest.raises(ValueError, match=name):
            Sampling(**bad)
