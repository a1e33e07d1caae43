"""Word-level search with random sampling: words are drawn from the model's own probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from gpst.search.sample_words import sample_words
from gpst.search.sampling import Sampling
from gpst.search.score import score_text

WIDE = 200  # hypotheses: enough to hold all trees of these texts


@pytest.fixture(scope="module")
def small_model(tiny):
    return tiny()


def next_word_log_p(model, prompt):
    """log p(word | prompt) of every word of the vocabulary, as of given texts."""
    *before, last = prompt
    texts = [[*before, [*last, word]] for word in range(model.config.vocab_size)]
    return torch.tensor([score.log_p[-1] for score in score_text(model, texts, beam=WIDE)])


@pytest.mark.parametrize("prompt", [[[3, 1, 4]], [[2, 5], [3, 1]]])
def test_greedy_words_are_the_most_probable_ones_summed_over_trees(small_model, prompt):
    greedy = Sampling(top_k=1)
    [found] = sample_words(small_model, [prompt], max_new_tokens=3, sampling=greedy, beam=WIDE)

    read = [list(sentence) for sentence in prompt]
    for word in found.tokens:
        assert word == int(next_word_log_p(small_model, read).argmax())
        read[-1].append(word)
    assert found.sentences == read
    assert [tree.num_tokens for tree in found.trees] == [len(sentence) for sentence in read]


def test_words_are_drawn_as_often_as_the_model_says(small_model):
    prompt, count = [[3, 1]], 600
    found = sample_words(
        small_model,
        [prompt] * count,
        max_new_tokens=1,
        sampling=Sampling(),
        seeds=range(count),
        beam=8,
    )
    chances = next_word_log_p(small_model, prompt).exp()
    drawn = torch.bincount(torch.tensor([one.tokens[0] for one in found]), minlength=len(chances))
    for word, chance in enumerate(chances.tolist()):
        spread = math.sqrt(count * chance * (1 - chance)) + 1
        assert abs(int(drawn[word]) - count * chance) < 4.5 * spread


def test_a_text_does_not_depend_on_its_batch(small_model):
    prompts = [[[3, 1, 4, 1, 5]], [[2]], [[1, 2], [3, 3, 3]]]
    options = {"max_new_tokens": 6, "sampling": Sampling(top_k=2), "beam": 5, "final_tokens": [4]}
    together = sample_words(small_model, prompts, seeds=[7, 8, 9], **options)
    for prompt, seed, one in zip(prompts, (7, 8, 9), together, strict=True):
        [alone] = sample_words(small_model, [prompt], seeds=[seed], **options)
        assert alone.tokens == one.tokens
        assert alone.trees == one.trees
        assert alone.log_p == pytest.approx(one.log_p, abs=1e-4)


def test_texts_end_with_the_end_token_and_sentences_after_final_ones(small_model):
    vocabulary = list(range(small_model.config.vocab_size))
    options = {"sampling": Sampling(seed=3), "beam": 4}
    [ended] = sample_words(
        small_model, [[[3, 1]]], max_new_tokens=20, end_token=2, seeds=[1], **options
    )
    assert 2 not in ended.tokens[:-1]
    assert ended.tokens[-1] == 2 or len(ended.tokens) == 20
    [fresh] = sample_words(small_model, [[]], max_new_tokens=4, **options)
    assert len(fresh.tokens) == 4
    # When every token may end a sentence, a finished one is never continued.
    [parts] = sample_words(
        small_model, [[[3]]], max_new_tokens=8, final_tokens=vocabulary, **options
    )
    assert [token for sentence in parts.sentences for token in sentence] == [3, *parts.tokens]
    assert [tree.num_tokens for tree in parts.trees] == [len(s) for s in parts.sentences]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 0}, "beam 0"),
        ({"max_new_tokens": 10_000}, "shorten the prompt"),
        ({"prompts": [[[]]]}, "every sentence a token"),
    ],
)
def test_what_cannot_be_is_named(small_model, changes, message):
    options = {"prompts": [[[1]]], "max_new_tokens": 2, "sampling": Sampling(), **changes}
    with pytest.raises(ValueError, match=message):
        sample_words(small_model, **options)
