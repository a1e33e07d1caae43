"""The table of contexts and its cache: beside the dataset, in the user's folder, or nowhere."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from packing import VOCAB, packed, random_documents, write_random

from data_prep.format.shard import open_dataset, write_dataset
from data_prep.format.stored_array import StoredArray
from pipeline.data import context_table as contexts_module
from pipeline.data.context_table import context_table


@pytest.fixture
def dataset(tmp_path):
    """Three training shards and a held-out one; sentences of 1 to 9 tokens."""
    return write_random(tmp_path / "data", 40, 6, shard_documents=15)


def cached_files(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_the_table_is_cached_beside_the_dataset(dataset, monkeypatch):
    built = context_table(dataset, "train", 16)
    assert len(cached_files(dataset.path / "contexts")) == 1
    monkeypatch.setattr(contexts_module, "pack_shard", None)
    cached = context_table(open_dataset(dataset.path), "train", 16)
    assert isinstance(cached, StoredArray)
    assert cached[:].tolist() == built.tolist()


def test_each_split_length_and_content_has_a_table_of_its_own(tmp_path, dataset):
    context_table(dataset, "train", 16)
    context_table(dataset, "train", 17)
    context_table(dataset, "validation", 16)
    again = write_dataset(dataset.path, random_documents(5, 4), vocab_size=VOCAB)
    assert len(context_table(again, "train", 16)) == len(packed(random_documents(5, 4), 16, 99))
    assert len(cached_files(dataset.path / "contexts")) == 4


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"not numpy at all" * 9])
def test_a_damaged_cache_is_rebuilt(dataset, damage):
    built = context_table(dataset, "train", 16)
    (path,) = (dataset.path / "contexts").iterdir()
    path.write_bytes(damage)
    assert context_table(dataset, "train", 16)[:].tolist() == built.tolist()
    assert np.load(path).tolist() == built.tolist()


def test_a_cache_of_other_contexts_is_rebuilt(dataset):
    built = context_table(dataset, "train", 16)
    (path,) = (dataset.path / "contexts").iterdir()
    np.save(path, built[:-1])
    assert context_table(dataset, "train", 16)[:].tolist() == built.tolist()
    np.save(path, np.arange(3))
    assert context_table(dataset, "train", 16)[:].tolist() == built.tolist()


def test_a_read_only_dataset_is_cached_in_the_users_folder(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # A file in the folder's place stops even root from writing there.
    (dataset.path / "contexts").write_text("")
    built = context_table(dataset, "train", 16)
    assert len(cached_files(tmp_path / "cache" / "gpst" / "contexts")) == 1
    monkeypatch.setattr(contexts_module, "pack_shard", None)
    assert context_table(dataset, "train", 16)[:].tolist() == built.tolist()


def test_without_any_place_for_a_cache_the_table_stays_in_memory(dataset, tmp_path, monkeypatch):
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    (dataset.path / "contexts").write_text("")
    assert len(context_table(dataset, "train", 16)) == len(packed(random_documents(0, 40), 16, 15))


def test_a_failed_write_leaves_no_torn_file(dataset, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "fsync", full)
    context_table(dataset, "train", 16)
    assert cached_files(dataset.path / "contexts") == []
    assert cached_files(tmp_path / "cache" / "gpst" / "contexts") == []


def test_several_may_build_the_table_at_once(dataset):
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: context_table(dataset, "train", 16), range(8)))
    assert len({tuple(table[:].tolist()) for table in tables}) == 1
    assert len(cached_files(dataset.path / "contexts")) == 1
