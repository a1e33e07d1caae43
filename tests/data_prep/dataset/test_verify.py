"""``verify`` and ``inspect``, and what ``open_dataset`` checks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from data_prep.dataset.verify import verify
from data_prep.errors import DatasetError
from data_prep.files import HashingWriter
from data_prep.format.manifest import ARRAYS, FileRecord, write_manifest
from data_prep.format.shard import open_dataset, write_dataset

DOCUMENTS = [[[1, 2, 3], [4]], [[5, 6]], [[7], [8], [9, 9]]]


@pytest.fixture
def dataset(tmp_path):
    return write_dataset(tmp_path / "data", DOCUMENTS, vocab_size=10, validation=[[[2, 2]]])


def test_what_is_written_is_read(dataset):
    shard = dataset.shards("train")[0]
    assert shard.tokens[:].tolist() == [1, 2, 3, 4, 0, 5, 6, 0, 7, 8, 9, 9, 0]
    assert shard.sentence_ends[:].tolist() == [3, 4, 5, 7, 8, 9, 10, 12, 13]
    assert shard.document_ends[:].tolist() == [3, 5, 9]
    assert (shard.tokens.dtype, shard.sentence_ends.dtype) == (np.uint16, np.uint64)
    assert dataset.manifest.num_tokens == {"train": 13, "validation": 3}
    assert dataset.manifest.num_documents == {"train": 3, "validation": 1}
    assert [s.name for s in dataset.shards("validation")] == ["validation-00000"]
    assert verify(dataset.path) == []


def test_shards_are_plain_npy(dataset):
    for array in ARRAYS:
        assert np.load(dataset.path / f"shard-00000.{array}.npy").ndim == 1


def test_every_flipped_byte_is_found(dataset, run):
    """A bit of each byte of each file; the file is named."""
    for path in sorted(dataset.path.glob("*.npy")):
        whole = path.read_bytes()
        for place in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[place] ^= 0x10
            path.write_bytes(damaged)
            code, out, error = run("verify", dataset.path)
            assert code == 3
            assert path.name in error, (path, place)
            assert len(error.splitlines()) == 1
            assert "sound" not in out
        path.write_bytes(whole)
    assert run("verify", dataset.path)[0] == 0


def test_fingerprint_follows_the_data(tmp_path, dataset):
    same = write_dataset(tmp_path / "b", DOCUMENTS, vocab_size=10, validation=[[[2, 2]]])
    other = write_dataset(tmp_path / "c", DOCUMENTS, vocab_size=10, validation=[[[2, 3]]])
    assert dataset.manifest.fingerprint == same.manifest.fingerprint
    assert dataset.manifest.fingerprint != other.manifest.fingerprint


def rewrite(dataset, array, values):
    """Replace an array of the first shard, with a manifest that agrees with it."""
    record = dataset.manifest.shards[0]
    path = dataset.path / record.file_name(array)
    kind = dataset.manifest.tokens_dtype if array == "tokens" else "uint64"
    writer = HashingWriter(path, kind, len(values))
    writer.write(np.array(values))
    files = {**record.files, array: FileRecord(*writer.close())}
    shards = (replace(record, files=files), *dataset.manifest.shards[1:])
    write_manifest(dataset.path, replace(dataset.manifest, shards=shards))


@pytest.mark.parametrize(
    ("array", "values", "problem"),
    [
        ("tokens", [1, 2, 3, 4, 0, 5, 6, 0, 7, 8, 9, 10, 0], "id 10 >= vocabulary size 10"),
        ("tokens", [1, 2, 3, 4, 0, 5, 6, 1, 7, 8, 9, 9, 0], "does not end with the token 0"),
        ("sentence_ends", [3, 3, 5, 7, 8, 9, 10, 12, 13], "ends do not increase at 1"),
        ("sentence_ends", [3, 4, 5, 7, 8, 9, 10, 11, 12], "the last end is 12, not 13"),
        ("document_ends", [3, 5, 8], "the last end is 8, not 9"),
        ("document_ends", [2, 5, 9], "does not end with the token 0"),
    ],
)
def test_values_that_cannot_be(dataset, array, values, problem):
    rewrite(dataset, array, values)
    problems = verify(dataset.path)
    assert len(problems) == 1
    assert problem in problems[0]
    named = "document_ends" if "does not end" in problem else array
    assert f"shard-00000.{named}.npy" in problems[0]


def test_sentences_that_are_too_long(dataset):
    write_manifest(dataset.path, replace(dataset.manifest, max_sentence_tokens=2))
    assert "sentence 0 has more than 2 tokens" in verify(dataset.path)[0]


def test_open_dataset_checks(dataset):
    path = dataset.path / "shard-00000.tokens.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(DatasetError, match=r"shard-00000.tokens.npy has \d+ bytes, the manifest"):
        open_dataset(dataset.path)
    path.unlink()
    with pytest.raises(DatasetError, match=r"tokens.npy is missing"):
        open_dataset(dataset.path)
    np.save(path, np.zeros(13, np.int16))
    with pytest.raises(DatasetError, match=r"header is not that of uint16 \(13,\)"):
        open_dataset(dataset.path)
    path.write_bytes(whole)
    open_dataset(dataset.path)


def test_open_dataset_checks_the_manifest(dataset):
    path = dataset.path / "manifest.json"
    values = json.loads(path.read_text())
    for change, message in (
        ({"tokens_dtype": "uint32"}, "does not follow from vocab_size 10"),
        ({"format_version": 2}, "format version 2"),
        ({"shards": 5}, "wrong structure"),
        ({"tokenizer": {}}, "wrong structure"),
    ):
        path.write_text(json.dumps({**values, **change}))
        with pytest.raises(DatasetError, match=message):
            open_dataset(dataset.path)


def test_inspect_shows_text_and_lengths(run, tmp_path, corpus, bpe_path):
    out = tmp_path / "out"
    run("build", "--source", "text", "--input", corpus, "--tokenizer", bpe_path, "--output", out,
        "--workers", 1, "--validation-fraction", 0)  # fmt: skip
    code, shown, _ = run("inspect", out, "--documents", "2", "--first", "1")
    assert code == 0
    assert "Document 1.⏎\n Dr. Smith went to Washington.⏎\n" in shown
    assert "\\n\\nIt cost $3.50, i.e. little.⏎" in shown
    assert "Document 2." in shown
    assert "Document 3." not in shown
    assert "sentence lengths (tokens)" in shown
    assert "12 documents" in shown


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--first", 3), "--first 3: the documents of train are 0 to 2"),
        (("--first", -1), "--first -1: the documents of train are 0 to 2"),
        (("--documents", -1), "--documents -1: at least 0"),
        (("--split", "validation", "--first", 1), "--first 1: the documents of validation are 0"),
    ],
)
def test_inspect_of_documents_that_are_not_there(dataset, run, more, message):
    code, shown, error = run("inspect", dataset.path, *more)
    assert (code, shown) == (2, "")
    assert error.startswith(f"error: {message}")
    assert len(error.splitlines()) == 1


def test_write_dataset_refuses_bad_ids(tmp_path):
    with pytest.raises(ValueError, match="non-empty"):
        write_dataset(tmp_path / "x", [[[1], []]], vocab_size=10)
    with pytest.raises(ValueError, match="ids must lie"):
        write_dataset(tmp_path / "x", [[[70_000]]], vocab_size=10)
