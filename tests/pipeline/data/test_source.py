"""Contexts against a brute-force oracle, and what damaged or unfit data says."""

import os

import numpy as np
import pytest
import torch
from packing import END, VOCAB, packed, random_documents, unpack, write_random

from data_prep.errors import DatasetError
from data_prep.format.shard import write_dataset
from pipeline.config.sections import DataConfig, DatasetConfig
from pipeline.data.order import sample_index
from pipeline.data.source import ContextSource, open_source
from pipeline.errors import ConfigError, DataError


@pytest.fixture
def dataset(tmp_path):
    """Three training shards and a held-out one; sentences of 1 to 9 tokens."""
    return write_random(tmp_path / "data", 40, 6, shard_documents=15)


@pytest.mark.parametrize("context_tokens", [9, 10, 16, 33, 1024])
@pytest.mark.parametrize("shard_documents", [1, 7, 40])
def test_contexts_equal_the_oracles(tmp_path, context_tokens, shard_documents):
    documents = random_documents(context_tokens, 40)
    dataset = write_dataset(tmp_path, documents, vocab_size=VOCAB, shard_documents=shard_documents)
    source = ContextSource([dataset], "train", context_tokens)
    expected = packed(documents, context_tokens, shard_documents)
    assert source.num_contexts == len(expected)
    assert unpack(source.batch(np.arange(len(expected)))) == expected
    assert source.num_tokens == sum(len(s) for context in expected for s in context)


def test_sentences_that_just_fit(tmp_path):
    documents = [[[1] * 7, [2] * 1], [[3] * 8], [[4] * 3]]
    dataset = write_dataset(tmp_path, documents, vocab_size=VOCAB)
    found = unpack(ContextSource([dataset], "train", 8).batch(np.arange(4)))
    assert found == [[[1] * 7, [2]], [END], [[3] * 8], [END, [4] * 3, END]]


def test_counts_are_those_of_the_batch_without_reading_it(dataset):
    source = ContextSource([dataset], "train", 16)
    for seed in range(5):
        chosen = source.sample(seed, np.arange(7))
        batch = source.batch(chosen)
        assert source.counts(chosen) == batch.counts
        assert batch.num_contexts == 7
        assert batch.tokens.dtype == torch.int64
    assert source.counts([]).tokens == 0


def test_the_order_of_a_batch_is_the_order_given(dataset):
    source = ContextSource([dataset], "train", 16)
    alone = [unpack(source.batch([i]))[0] for i in (5, 0, 5)]
    assert unpack(source.batch([5, 0, 5])) == alone


def test_a_context_that_does_not_exist_is_refused(dataset):
    source = ContextSource([dataset], "train", 16)
    for number in (-1, source.num_contexts):
        with pytest.raises(IndexError, match=f"of {source.num_contexts}"):
            source.counts([number])


def test_the_held_out_split_is_its_own(dataset):
    source = ContextSource([dataset], "validation", 16)
    assert unpack(source.batch(np.arange(source.num_contexts))) == packed(
        random_documents(1, 6), 16, 15
    )


def test_sampling_one_dataset_is_the_plain_sampler(dataset):
    source = ContextSource([dataset], "train", 16)
    k = np.arange(100)
    assert source.sample(3, k).tolist() == sample_index(3, k, source.num_contexts).tolist()


def test_a_mixture_samples_both_by_weight(tmp_path, dataset):
    other = write_dataset(tmp_path / "b", [[[42] * 5] * 3] * 4, vocab_size=VOCAB)
    config = DataConfig(
        datasets=(DatasetConfig(str(dataset.path), 3.0), DatasetConfig(str(other.path), 1.0)),
        context_tokens=16,
    )
    source = open_source(config, "train")
    first = ContextSource([dataset], "train", 16).num_contexts
    second = ContextSource([other], "train", 16).num_contexts
    assert source.num_contexts == first + second
    chosen = source.sample(0, np.arange(400))
    assert (chosen >= first).sum() == 100
    from_other = chosen[chosen >= first][:second]
    assert sorted(from_other) == list(range(first, first + second))
    batch = source.batch(from_other)
    assert set(batch.tokens.tolist()) == {0, 42}
    assert source.counts(from_other) == batch.counts


def test_a_shard_cut_short_after_it_was_opened_is_named(dataset):
    source = ContextSource([dataset], "train", 16)
    source.batch(np.arange(source.num_contexts))
    path = dataset.path / "shard-00001.tokens.npy"
    size = path.stat().st_size
    os.truncate(path, size - 2)
    with pytest.raises(DatasetError, match=rf"{path.name} was cut short .*{size - 2} .*not {size}"):
        source.batch(np.arange(source.num_contexts))


def test_fingerprints_follow_the_batches(tmp_path, dataset):
    def fingerprint(split="train", context_tokens=16, weights=(1.0, 1.0)):
        return ContextSource([dataset, dataset], split, context_tokens, weights).fingerprint

    other = write_dataset(tmp_path / "b", random_documents(9, 3), vocab_size=VOCAB)
    changed = [
        fingerprint(),
        fingerprint(split="validation"),
        fingerprint(context_tokens=17),
        fingerprint(weights=(1.0, 2.0)),
        ContextSource([dataset, other], "train", 16).fingerprint,
    ]
    assert len(set(changed)) == len(changed)
    assert fingerprint() == fingerprint(weights=(0.5, 0.5))


# --- data that cannot serve


def test_a_sentence_longer_than_a_context_is_named(tmp_path):
    documents = [[[1] * 5], [[2] * 3, [3] * 12]]
    dataset = write_dataset(tmp_path, documents, vocab_size=VOCAB, shard_documents=1)
    with pytest.raises(DataError) as caught:
        ContextSource([dataset], "train", 8)
    assert str(caught.value).startswith(
        "shard shard-00001, sentence 1: has 12 tokens, more than data.context_tokens 8"
    )
    assert caught.value.exit_code == 3


def test_a_first_sentence_that_is_too_long_is_named(tmp_path):
    dataset = write_dataset(tmp_path, [[[1] * 9]], vocab_size=VOCAB)
    with pytest.raises(DataError, match="shard-00000, sentence 0: has 9 tokens, more than"):
        ContextSource([dataset], "train", 8)


def overwrite(dataset, array, index, value):
    """Changes one number of the first shard and keeps the file's size."""
    path = dataset.path / f"shard-00000.{array}.npy"
    values = np.load(path)
    values[index] = value
    np.save(path, values)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (3, 0, "shard-00000, sentence 3: ends at token 0, no later than it starts"),
        (0, 0, "shard-00000, sentence 0: ends at token 0, no later than it starts"),
        (-1, 10**9, "shard-00000: its last sentence ends at token 1000000000 of "),
    ],
)
def test_damaged_sentence_ends_are_found(dataset, index, value, message):
    overwrite(dataset, "sentence_ends", index, value)
    with pytest.raises(DataError, match=message) as caught:
        ContextSource([dataset], "train", 16)
    assert "run python -m data_prep verify" in str(caught.value)


def test_a_token_outside_the_vocabulary_is_found(dataset):
    overwrite(dataset, "tokens", 4, VOCAB)
    source = ContextSource([dataset], "train", 16)
    with pytest.raises(DataError, match="shard-00000: token 4 is 50, outside the vocabulary of 50"):
        source.batch([0])


def test_a_dataset_without_held_out_documents_says_so(tmp_path):
    dataset = write_dataset(tmp_path, random_documents(0, 3), vocab_size=VOCAB)
    with pytest.raises(DataError, match=r"has no validation documents; .* --validation-fraction"):
        ContextSource([dataset], "validation", 16)


def test_a_missing_dataset_is_a_mistake_in_the_config(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path: no dataset directory .*nowhere; make it"):
        open_source(DataConfig(path=str(tmp_path / "nowhere")), "train")
    mixture = DataConfig(datasets=(DatasetConfig(str(tmp_path / "nowhere")),))
    with pytest.raises(ConfigError, match=r"data\.datasets: no dataset directory"):
        open_source(mixture, "train")


def test_a_folder_that_is_no_dataset_is_data_preps_error(tmp_path):
    with pytest.raises(DatasetError, match="no manifest"):
        open_source(DataConfig(path=str(tmp_path)), "train")


def test_datasets_of_two_tokenizers_do_not_mix(tmp_path, dataset):
    other = write_dataset(tmp_path / "b", [[[1]]], vocab_size=VOCAB, bos_id=7)
    with pytest.raises(ConfigError, match="have different tokenizers"):
        ContextSource([dataset, other], "train", 16)
