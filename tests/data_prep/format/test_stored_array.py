"""Arrays read range by range: as numpy has it, and an error where the file is cut short."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DatasetError
from data_prep.format import stored_array
from data_prep.format.shard import write_dataset
from data_prep.format.stored_array import StoredArray

VALUES = np.random.default_rng(0).integers(0, 60_000, 1000).astype(np.uint16)


@pytest.fixture
def stored(tmp_path, monkeypatch) -> StoredArray:
    monkeypatch.setattr(stored_array, "_BLOCK", 64)
    (tmp_path / "x.npy").write_bytes(b"header" + VALUES.tobytes())
    return StoredArray(tmp_path / "x.npy", np.uint16, 6, len(VALUES), "build it again")


def test_it_reads_what_numpy_reads(stored):
    assert (len(stored), stored.size, stored.dtype) == (1000, 1000, np.uint16)
    for key in (slice(None), slice(3, 7), slice(990, 2000), slice(7, 3), slice(-5, None)):
        assert stored[key].tolist() == VALUES[key].tolist()
    assert [stored[k] for k in (0, 999, -1, -1000)] == [VALUES[k] for k in (0, 999, -1, -1000)]
    for rising in ([], [0], [0, 0, 5, 63, 64, 65, 900, 999], list(range(1000))):
        indices = np.array(rising, np.int64)
        assert stored[indices].tolist() == VALUES[indices].tolist()
    assert list(stored) == VALUES.tolist()
    assert np.asarray(stored).tolist() == VALUES.tolist()
    assert np.asarray(stored, np.int64).dtype == np.int64
    for key in (1000, -1001, slice(0, 9, 2)):
        with pytest.raises(IndexError, match=r"x\.npy"):
            stored[key]


def test_a_file_that_is_cut_short_is_an_error_with_both_sizes(stored):
    stored[:]
    os.truncate(stored.path, 500)
    assert stored[:247].tolist() == VALUES[:247].tolist()
    with pytest.raises(DatasetError, match=r"x\.npy was cut short .*500 bytes, not 2006; build it"):
        stored[246:248]
    with pytest.raises(DatasetError, match="cut short"):
        stored[999]


def test_a_file_that_is_gone_or_no_file_is_named(tmp_path):
    (tmp_path / "x.npy").mkdir()
    for name in ("x.npy", "none.npy"):
        with pytest.raises(DatasetError, match=rf"{name} cannot be read \("):
            StoredArray(tmp_path / name, np.uint8, 0, 1, "build it again")[0]


def test_shards_are_not_mapped_and_few_files_are_open(tmp_path):
    documents = [[[k + 1]] for k in range(200)]
    dataset = write_dataset(tmp_path / "d", documents, vocab_size=300, shard_documents=1)
    shards = dataset.shards("train")
    assert [int(shard.tokens[0]) for shard in shards] == list(range(1, 201))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert 0 < sum(name.startswith(str(tmp_path)) for name in opened) <= stored_array._OPEN
    assert int(shards[0].tokens[1]) == 0  # opened again
