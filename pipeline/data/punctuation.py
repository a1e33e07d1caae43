"""Where punctuation falls in text: the counts behind gpst/chart/phrase_edges.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int8
from tokenizers import Tokenizer

from data_prep.format.shard import Dataset
from gpst.chart.phrase_edges import CLOSING, OPENING, WORD, PhraseEdges
from pipeline.data.source import tokens_differ
from pipeline.errors import ConfigError

# No apostrophes and hyphens: they stand inside words too.
_CLOSING = frozenset('.,;:?!…—–)]}"”»›。、，；：？！।؟،؛')
_OPENING = frozenset("([{“„«‹¿¡「『（")
MAX_TOKENS = 20_000_000
"""Tokens of the training text that are counted; many more would change little."""


def token_kinds(tokenizer: Tokenizer, vocab_size: int) -> Int8[np.ndarray, "V"]:
    """WORD, CLOSING or OPENING of each token id."""
    kinds = np.full(vocab_size, WORD, np.int8)
    for token in range(min(vocab_size, tokenizer.get_vocab_size())):
        characters = set(tokenizer.decode([token], skip_special_tokens=False).strip())
        if characters and characters <= _CLOSING:
            kinds[token] = CLOSING
        elif characters and characters <= _OPENING:
            kinds[token] = OPENING
    return kinds


def count_phrase_edges(datasets: Sequence[Dataset], trained_on: Dataset) -> PhraseEdges:
    """From the first MAX_TOKENS training tokens of the datasets, equally many of each.

    Args:
        trained_on: has the tokenizer of the batches that the counts are for.
    Raises:
        ConfigError: a tokenizer is missing or another, or there is no punctuation.
    """
    file = trained_on.tokenizer_path / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            f"structure.chart_order: the dataset has no tokenizer ({file.parent}) that says which "
            "tokens are punctuation; build the dataset again"
        )
    for dataset in datasets:
        if tokens_differ(dataset.tokenizer_path, trained_on.tokenizer_path):
            raise ConfigError(
                f"structure.punctuation_data: {dataset.path} and {trained_on.path} have different "
                "tokenizers; build both with one"
            )
    kinds = token_kinds(Tokenizer.from_file(str(file)), trained_on.manifest.vocab_size)
    tokens, sentence_ends = _first_sentences(datasets)
    if not kinds[tokens].any():
        names = ", ".join(str(dataset.path) for dataset in datasets)
        raise ConfigError(
            f"structure.chart_order: {names} has no punctuation; name a dataset that has by "
            "structure.punctuation_data"
        )
    return PhraseEdges.count(kinds, tokens, sentence_ends)


def _first_sentences(datasets: Sequence[Dataset]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, and the number of tokens up to the end of each sentence."""
    tokens, ends, total = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for dataset in datasets:
        budget = MAX_TOKENS // len(datasets)
        for shard in dataset.shards("train"):
            if budget <= 0:
                break
            shard_ends = np.asarray(shard.sentence_ends).astype(np.int64)
            shard_ends = shard_ends[: np.searchsorted(shard_ends, budget, side="right")]
            size = int(shard_ends[-1]) if len(shard_ends) else 0
            tokens.append(shard.tokens[:size].astype(np.int64))
            ends.append(shard_ends + total)
            total, budget = total + size, budget - shard.tokens.size
    return np.concatenate(tokens), np.concatenate(ends)
