"""Punctuation is counted in datasets, and orders the charts of training."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from data_prep.format.shard import open_dataset
from gpst.chart.phrase_edges import CLOSING, OPENING, WORD
from pipeline.config.batch_shape import BatchShape
from pipeline.config.run import load_config
from pipeline.data import punctuation
from pipeline.data.prefetch import BatchReader
from pipeline.data.punctuation import count_phrase_edges, token_kinds
from pipeline.data.source import ContextSource
from pipeline.errors import ConfigError
from pipeline.train.preflight import check_run


def test_kinds_of_tokens():
    words = ["[UNK]", "cat", "##s", "'", "-", ",", "...", "(", "“", "a.", '"']
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    kinds = token_kinds(tokenizer, len(words) + 1)
    expected = [WORD] * 5 + [CLOSING, CLOSING, OPENING, OPENING, WORD, CLOSING, WORD]
    assert kinds.tolist() == expected


def test_only_so_many_tokens_are_counted(toy_dataset, monkeypatch):
    dataset = open_dataset(toy_dataset)
    tokens, ends = punctuation._first_sentences([dataset])
    assert len(tokens) == ends[-1] == dataset.manifest.num_tokens["train"]
    monkeypatch.setattr(punctuation, "MAX_TOKENS", len(tokens) // 2)
    fewer, fewer_ends = punctuation._first_sentences([dataset, dataset])
    assert fewer_ends[-1] == len(fewer) <= len(tokens) // 2
    part = fewer[: len(fewer) // 2]
    assert np.array_equal(part, fewer[len(part) :])
    assert np.array_equal(part, tokens[: len(part)])


def test_a_reader_gives_the_scores(toy_dataset, monkeypatch):
    dataset = open_dataset(toy_dataset)
    source = ContextSource([dataset], "train", 32)
    reader = BatchReader(source, 5, BatchShape(2, 2, 1, 1), 0)
    kinds = np.full(dataset.manifest.vocab_size, WORD, np.int8)
    kinds[:3] = CLOSING
    monkeypatch.setattr(punctuation, "token_kinds", lambda *_: kinds)
    edges = count_phrase_edges([dataset], dataset)
    batch = replace(reader, phrase_edges=edges).read(3, 0)
    assert reader.read(3, 0).boundary_scores is None
    expected = edges.boundary_scores(batch.tokens.numpy(), batch.sentence_ends)
    assert np.array_equal(batch.boundary_scores, expected)


def test_text_without_punctuation_is_refused(toy_dataset):
    dataset = open_dataset(toy_dataset)
    with pytest.raises(ConfigError, match="has no punctuation; name a dataset"):
        count_phrase_edges([dataset], dataset)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["structure.chart_order=comma"], "it must be parser | punctuation"),
        (["structure.punctuation_data=x"], "and structure.chart_order is parser: set it"),
        (["structure.chart_order=punctuation"], "has no punctuation"),
        (
            ["structure.chart_order=punctuation", "structure.punctuation_data=nowhere"],
            "structure.punctuation_data: no dataset directory nowhere; make it with",
        ),
    ],
)
def test_what_is_wrong_is_said_before_a_run(toy_config, overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_run(load_config(toy_config, overrides), 1)


def test_a_run_is_trained_on_these_trees(toy_config, toy_dataset, monkeypatch):
    kinds = np.full(open_dataset(toy_dataset).manifest.vocab_size, WORD, np.int8)
    kinds[:3] = CLOSING
    monkeypatch.setattr(punctuation, "token_kinds", lambda *_: kinds)
    checked = check_run(load_config(toy_config, ["structure.chart_order=punctuation"]), 1)
    assert checked.phrase_edges is not None
    assert np.array_equal(checked.phrase_edges.kinds, kinds)
    assert check_run(load_config(toy_config), 1).phrase_edges is None
