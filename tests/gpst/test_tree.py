"""Trees, actions, configuration and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from actions import actions_of
from known_trees import left_branching, right_branching, splits_of

from gpst.batch import BatchCounts, ContextBatch, padded_rows
from gpst.config import ConfigError, config_from_dict, config_to_dict
from gpst.tree import Action, Tree

WORDS = ["the", "old", "man", "sleeps"]


def test_brackets_of_known_trees():
    assert left_branching(4).brackets(WORDS) == "(((the old) man) sleeps)"
    assert right_branching(4).brackets(WORDS) == "(the (old (man sleeps)))"
    assert Tree(1, ((0, 0),)).brackets(["yes"]) == "yes"
    with pytest.raises(ValueError, match="3 words for a tree of 4 tokens"):
        left_branching(4).brackets(WORDS[:3])


def test_picture_has_a_line_a_token():
    tree = Tree.from_splits(4, {(0, 3): 2, (0, 2): 0, (1, 2): 1})
    assert tree.picture(WORDS).split("\n") == [
        "┬─┬─the",
        "│ └─┬─old",
        "│   └─man",
        "└─sleeps",
    ]


def test_height_and_splits():
    assert left_branching(5).height == 4
    assert Tree(1, ((0, 0),)).height == 0
    assert Tree.from_splits(4, {(0, 3): 1, (0, 1): 0, (2, 3): 2}).height == 2
    assert list(splits_of(right_branching(3))) == [((1, 2), 1), ((0, 2), 0)]


def test_actions_and_back():
    tree = Tree.from_splits(4, {(0, 3): 1, (0, 1): 0, (2, 3): 2})
    actions = actions_of(tree)
    gen, comp = Action.GEN, Action.COMP
    assert actions == [gen, gen, comp, gen, gen, comp, comp]
    assert Tree.from_actions(actions) == tree
    with pytest.raises(ValueError, match="fewer than two"):
        Tree.from_actions([gen, comp])


@pytest.mark.parametrize(
    "spans",
    [
        ((0, 0), (1, 1)),
        ((0, 0), (1, 1), (0, 1), (2, 2)),
        ((1, 1), (0, 0), (0, 1)),
        ((0, 0), (1, 1), (2, 2), (0, 2), (0, 2)),
    ],
)
def test_what_is_not_a_tree_is_refused(spans):
    with pytest.raises(ValueError, match=r"not|join"):
        Tree(max(j for _, j in spans) + 1, spans)


def test_configuration_round_trip_and_errors():
    values = {"kind": "gpst", "vocab_size": 10, "bos_token_id": 0, "parser": {"dim": 32}}
    config = config_from_dict(values)
    assert config_from_dict(config_to_dict(config)) == config
    wrong = [
        ({"vocabsize": 3}, "unknown field vocabsize; did you mean vocab_size"),
        ({"composition": {"windw": 3}}, "composition.windw.*did you mean composition.window"),
        ({"composition": {"schedule": "best"}}, "composition.schedule: 'best'.*score or height"),
        ({"hidden_dim": 100}, "hidden_dim: 100.*number of heads"),
        ({"dropout": 1.5}, "dropout: 1.5"),
        ({"kind": "bert"}, "kind: 'bert'"),
        ({"vocab_size": 0}, "vocab_size: 0"),
        ({"bos_token_id": 10}, "bos_token_id: 10.*below vocab_size"),
        ({"parser": {"dim": 24, "num_heads": 8}}, "parser.dim: 24"),
    ]
    for change, message in wrong:
        with pytest.raises(ConfigError, match=message):
            config_from_dict(values | change)
    with pytest.raises(ConfigError, match="vocab_size"):
        config_from_dict({"kind": "gpt2", "bos_token_id": 0})


def test_batch_counts_and_layout():
    batch = ContextBatch.from_sentences([[[1, 2, 3], [4]], [[5, 6]]])
    assert batch.counts == BatchCounts(tokens=6, sentences=3)
    assert (batch.counts.actions, batch.counts.splits) == (9, 3)
    assert batch.counts + BatchCounts(1, 1) == BatchCounts(7, 4)
    assert batch.context_lengths.tolist() == [4, 2]
    assert batch.context_actions.tolist() == [6, 3]
    assert batch.sentence_lengths.tolist() == [3, 1, 2]
    assert padded_rows(batch.context_token_ends).tolist() == [0, 1, 2, 3, 4, 5]
    assert padded_rows(np.array([1, 4])).tolist() == [0, 3, 4, 5]


@pytest.mark.parametrize(("ends", "contexts"), [([3, 3], [2]), ([2], [1]), ([3], [2]), ([], [])])
def test_a_batch_that_does_not_add_up_is_refused(ends, contexts):
    with pytest.raises(ValueError, match=r"batch|sentence"):
        ContextBatch(torch.arange(3), np.array(ends, np.int64), np.array(contexts, np.int64))
