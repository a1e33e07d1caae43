"""Contexts packed by plain Python, on random documents."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from data_prep.format.shard import Dataset, write_dataset

VOCAB = 50
END = [0]


def random_documents(seed, num_documents, longest=9):
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(1, VOCAB, rng.integers(1, longest + 1)).tolist() for _ in range(n)]
        for n in rng.integers(1, 7, num_documents)
    ]


def write_random(folder: Path, train: int, held_out: int, shard_documents: int) -> Dataset:
    """A dataset of random documents: seed 0 to train on, seed 1 held out."""
    return write_dataset(
        folder,
        random_documents(0, train),
        vocab_size=VOCAB,
        validation=random_documents(1, held_out),
        shard_documents=shard_documents,
    )


def packed(documents, context_tokens, shard_documents):
    """The oracle: contexts as lists of sentences, greedily, by plain Python."""
    contexts = []
    for first in range(0, len(documents), shard_documents):
        context = []
        for document in documents[first : first + shard_documents]:
            for sentence in [*document, END]:
                if context and sum(map(len, context)) + len(sentence) > context_tokens:
                    contexts.append(context)
                    context = []
                context.append(sentence)
        contexts.append(context)
    return contexts


def unpack(batch):
    """A batch back as contexts of sentences of tokens."""
    tokens, ends, context_ends = batch.tokens.tolist(), batch.sentence_ends, batch.context_ends
    assert (ends[-1], context_ends[-1]) == (len(tokens), len(ends))
    sentences = [tokens[a:b] for a, b in pairwise([0, *ends])]
    return [sentences[a:b] for a, b in pairwise([0, *context_ends])]
