"""Syntactic generalization: surprisals of models, and the regions that they belong to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn

from gpst.search.parse import search_text
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.syntaxgym.suites import join_regions
from pipeline.evaluate.syntaxgym.surprisal import ModelSurprisals, TokenSurprisals, region_bits


def test_pieces_of_words_belong_to_the_region_they_begin_in(byte_bpe: Callable) -> None:
    tokenizer = byte_bpe([("Ġ", "d"), ("o", "g"), ("Ġd", "og")])
    text = join_regions([(1, "a dog"), (2, ""), (3, "dé"), (4, ".")])
    encoding = tokenizer.encode(text.text)
    assert encoding.tokens == ["a", "Ġdog", "Ġd", "Ã", "©", "Ġ", "."]
    bits = tuple(float(2**k) for k in range(7))

    found, crossing = region_bits(text, TokenSurprisals(tuple(encoding.offsets), bits))

    # The lone space goes with the full stop that it stands before.
    assert found == {1: 1.0 + 2.0, 2: 0.0, 3: 4.0 + 8.0 + 16.0, 4: 32.0 + 64.0}
    assert crossing == 0


def test_a_token_over_two_regions_counts_where_it_begins_and_is_counted() -> None:
    text = join_regions([(1, "ab"), (2, "cd")])

    found, crossing = region_bits(text, TokenSurprisals(((0, 1), (1, 4), (4, 5)), (1.0, 2.0, 4.0)))

    assert found == {1: 3.0, 2: 4.0}
    assert crossing == 1


def test_gpt2_surprisals_are_those_of_single_texts(tiny_gpt2: Callable, pieces: Tokenizer) -> None:
    model = tiny_gpt2(pieces.get_vocab_size())
    texts = ["the dog.", "a", "the cat, the dog", "no dog is a cat"]
    done: list[int] = []

    found = ModelSurprisals(model, pieces, batch_tokens=12, progress=done.append)(texts)

    assert sum(done) == 4
    assert len(done) > 1
    for text, own in zip(texts, found, strict=True):
        ids = pieces.encode(text).ids
        assert own.spans == tuple(pieces.encode(text).offsets)
        with torch.no_grad():
            log_p = F.log_softmax(model.gpt2(torch.tensor([[0, *ids[:-1]]])).logits[0], -1)
        direct = [-float(log_p[k, token]) / math.log(2) for k, token in enumerate(ids)]
        assert own.bits == pytest.approx(direct, rel=1e-4)
        assert len(set(own.bits)) == len(ids)


def test_gpst_surprisals_are_ratios_of_prefix_probabilities(
    tiny_gpst: Callable, pieces: Tokenizer
) -> None:
    model = tiny_gpst(pieces.get_vocab_size())
    texts = ["the dog.", "a", "the cat"]

    found = ModelSurprisals(model, pieces, beam=50, batch_tokens=9)(texts)
    narrow = ModelSurprisals(model, pieces, beam=1)(texts)

    for text, own in zip(texts, found, strict=True):
        alone = search_text(model, [[pieces.encode(text).ids]], beam=50)[0]
        assert alone.prefix_log_p is not None
        assert own.bits == pytest.approx(alone.quotient_surprisals.tolist(), rel=1e-4)
        assert sum(own.bits) == pytest.approx(-alone.prefix_log_p[-1] / math.log(2), rel=1e-4)
    assert sum(narrow[0].bits) > sum(found[0].bits)


def test_texts_that_do_not_fit_the_model_are_named(tiny_gpt2: Callable, pieces: Tokenizer) -> None:
    surprisals = ModelSurprisals(tiny_gpt2(pieces.get_vocab_size()), pieces)

    with pytest.raises(DataError, match=r"'x y x.* has 80 tokens; the model takes 1 to 64"):
        surprisals(["a", "x y " * 40])
    with pytest.raises(DataError, match=r"'' has 0 tokens"):
        surprisals([""])
    other: Any = nn.Identity()
    other.config = surprisals._model.config
    with pytest.raises(ConfigError, match="no surprisals for a Identity"):
        ModelSurprisals(other, pieces)
