"""What a text says without a model: its unigram perplexity, and the bytes of its tokens."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from known_model import Known
from packing import VOCAB, random_documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from data_prep.format.shard import Dataset, write_dataset
from pipeline.data.source import ContextSource
from pipeline.evaluate.held_out import (
    evaluate_model,
    evaluation_contexts,
    token_bytes,
    token_counts,
    unigram_perplexity,
)

CONTEXT = 24


# --- the unigram model


def test_unigram_perplexity_by_brute_force(dataset, held_out):
    train = ContextSource([dataset], "train", CONTEXT)
    tokens = [
        t for document in random_documents(0, 30) for sentence in [*document, [0]] for t in sentence
    ]
    counts = Counter(tokens)
    assert token_counts(train).tolist() == [counts[t] for t in range(VOCAB)]
    for max_contexts in (None, 4):
        chosen = evaluation_contexts(held_out, max_contexts)
        text = held_out.batch(chosen).tokens.tolist()
        nats = [-math.log((counts[t] + 1) / (len(tokens) + VOCAB)) for t in text]
        found = unigram_perplexity(train, held_out, max_contexts=max_contexts)
        assert found == pytest.approx(math.exp(sum(nats) / len(text)))


def test_a_token_never_seen_in_training_costs_but_does_not_break(tmp_path):
    dataset = write_dataset(tmp_path, [[[1, 1]]], vocab_size=4, validation=[[[3]]])
    splits = [ContextSource([dataset], split, 8) for split in ("train", "validation")]
    # Training: 1, 1, 0 of 4 ids; held out: 3 (1/7) and 0 (2/7).
    assert unigram_perplexity(*splits) == pytest.approx((7 / 1 * 7 / 2) ** 0.5)


def test_counts_in_chunks_are_the_same(dataset, monkeypatch):
    train = ContextSource([dataset], "train", CONTEXT)
    whole = token_counts(train)
    monkeypatch.setattr("pipeline.evaluate.held_out._CHUNK_TOKENS", 7)
    assert token_counts(train).tolist() == whole.tolist()


# --- bits per byte

TEXTS = ["The naïve café — it’s closed.", " Over 100 people came!", "\n日本語も。"]


def byte_level(folder) -> Dataset:
    """A dataset whose tokenizer is a byte-level BPE; the held-out split is TEXTS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    sentences = [tokenizer.encode(text).ids for text in TEXTS]
    dataset = write_dataset(folder, [sentences], vocab_size=300, validation=[sentences])
    dataset.tokenizer_path.mkdir()
    tokenizer.save(str(dataset.tokenizer_path / "tokenizer.json"))
    record = replace(dataset.manifest.tokenizer, kind="byte_bpe")
    return replace(dataset, manifest=replace(dataset.manifest, tokenizer=record))


def test_bits_per_byte_counts_the_bytes_of_the_text(tmp_path):
    source = ContextSource([byte_level(tmp_path)], "validation", 100)
    sizes = token_bytes(source)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    batch = source.batch(np.arange(source.num_contexts))
    assert sizes is not None
    assert sizes[batch.tokens.numpy()].sum() == num_bytes
    assert sizes[0] == 0
    found = evaluate_model(Known(), source)
    bits = found.joint_nats_per_token * found.num_tokens / math.log(2)
    assert found.bits_per_byte == pytest.approx(bits / num_bytes)
    assert found.metrics()["eval/bits_per_byte"] == found.bits_per_byte


def test_without_a_byte_level_tokenizer_bytes_are_the_mean(dataset):
    total = sum(dataset.manifest.num_tokens.values())
    counted = replace(dataset.manifest, counters={"text_bytes": 5 * total})
    source = ContextSource([replace(dataset, manifest=counted)], "validation", CONTEXT)
    found = evaluate_model(Known(), source)
    bits_per_token = found.joint_nats_per_token / math.log(2)
    assert found.bits_per_byte == pytest.approx(bits_per_token / 5)


def test_bytes_may_be_unknown(tmp_path, dataset):
    assert token_bytes(ContextSource([dataset], "train", CONTEXT)) is None
    byte_bpe = byte_level(tmp_path)
    (byte_bpe.tokenizer_path / "tokenizer.json").unlink()
    assert token_bytes(ContextSource([byte_bpe], "train", 100)) is None
