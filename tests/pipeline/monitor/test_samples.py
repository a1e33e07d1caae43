"""Continuations and the change of trees, on real models of tiny size."""

from __future__ import annotations

import pytest
import torch

from gpst.model.gpst import GPSTModel
from gpst.tree import Tree
from pipeline.errors import ConfigError
from pipeline.monitor.samples import FixedSentences, Samples, SentenceTree, tree_change

CPU = torch.device("cpu")
PROMPTS = ["w1 w2 w3", ""]


@pytest.fixture(params=["gpst", "gpt2"])
def model(request, tiny_gpst, tiny_gpt2):
    make = tiny_gpst if request.param == "gpst" else tiny_gpt2
    return make(64, max_context_tokens=12).train()


def test_prompts_are_continued(toy_dataset, model):
    fixed = FixedSentences(["w1 w2"], toy_dataset / "tokenizer", PROMPTS, num_tokens=5)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = fixed.sample(model, CPU)
    assert torch.equal(torch.get_rng_state(), state)  # training draws the same numbers as without
    assert model.training
    assert [len(text.split()) for text in first.continuations] == [5, 5]
    assert all(word.startswith("w") for text in first.continuations for word in text.split())
    assert fixed.sample(model, CPU).continuations == first.continuations
    assert len(first.trees) == (1 if isinstance(model, GPSTModel) else 0)


def test_a_continuation_ends_where_the_context_is_full(toy_dataset, model):
    fixed = FixedSentences([], toy_dataset / "tokenizer", ["w1 " * 9], num_tokens=50)
    (text,) = fixed.continuations(model, CPU)
    assert 1 <= len(text.split()) <= 3


def test_a_prompt_that_fills_the_context_is_refused(toy_dataset):
    with pytest.raises(ConfigError, match=r"monitor\.prompts: 'w1 w1 .* has 12 tokens and the"):
        FixedSentences([], toy_dataset / "tokenizer", ["w1 " * 12], max_tokens=12)


def test_prompts_need_a_tokenizer(tmp_path):
    with pytest.raises(ConfigError, match="no tokenizer"):
        FixedSentences([], tmp_path, ["w1"])


def test_nothing_to_sample_is_false(toy_dataset, tmp_path):
    assert not FixedSentences([], tmp_path)
    assert FixedSentences([], toy_dataset / "tokenizer", [""])


def tree(*splits):
    return SentenceTree(list("abcd"), Tree.from_splits(4, dict(splits)))


def test_change_counts_new_spans_of_all_sentences():
    left = tree(((0, 3), 2), ((0, 2), 1), ((0, 1), 0))  # (0, 1), (0, 2)
    right = tree(((0, 3), 0), ((1, 3), 1), ((2, 3), 2))  # (1, 3), (2, 3)
    balanced = tree(((0, 3), 1), ((0, 1), 0), ((2, 3), 2))  # (0, 1), (2, 3)
    before = Samples([left, left]).to_line()
    assert tree_change(before, Samples([left, left])) == 0.0
    assert tree_change(before, Samples([right, left])) == 0.5
    assert tree_change(before, Samples([balanced, left])) == 0.25
    assert tree_change(None, Samples([left])) is None
    assert tree_change(before, Samples([left])) is None


def test_two_tokens_have_one_tree():
    pair = Samples([SentenceTree(["a", "b"], Tree.from_splits(2, {(0, 1): 0}))])
    assert tree_change(pair.to_line(), pair) is None
