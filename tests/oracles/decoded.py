"""The text of a built dataset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from data_prep.dataset.inspect import open_tokenizer
from data_prep.format.shard import Dataset, Shard, Split


def documents(shard: Shard) -> Iterator[list[np.ndarray]]:
    """The documents of a shard, each a list of its sentences' tokens (end of document included)."""
    sentence = token = 0
    for last in shard.document_ends:
        ends = shard.sentence_ends[sentence : int(last)].astype(np.int64)
        yield np.split(shard.tokens[token : int(ends[-1])], ends[:-1] - token)
        sentence, token = int(last), int(ends[-1])


def document_texts(dataset: Dataset, split: Split = "train") -> Iterator[list[str]]:
    """Documents decoded back, each a list of sentences, without the end-of-document one."""
    tokenizer = open_tokenizer(dataset)
    for shard in dataset.shards(split):
        for sentences in documents(shard):
            ids = [sentence.tolist() for sentence in sentences[:-1]]
            yield tokenizer.decode_batch(ids, skip_special_tokens=False)
