"""Values at their limits: a shard exactly full, a sentence just as long as allowed, no tokens."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from data_prep.build import assemble
from data_prep.build.assemble import DocumentRun, ShardTask, write_shard
from data_prep.build.encode import CHARACTER, INSIDE, WORD, TokenBatch, _assign, _layout
from data_prep.build.job import BuildArguments, Job
from data_prep.build.unit import _keep, _run_batch
from data_prep.build.unit_files import DOCUMENT, UnitWriter, unit_file
from data_prep.errors import DatasetError
from data_prep.files import HashingWriter, write_atomically
from data_prep.format.shard import open_dataset, write_dataset
from data_prep.text.batch import RawBatch, Recorder
from data_prep.text.normalise import normalise
from data_prep.tokenizer import pieces

BEGINS = np.array([WORD, CHARACTER, INSIDE], np.uint8)  # of the ids 0, 1 and 2
END = 0


@pytest.fixture
def job(tmp_path):
    (tmp_path / ".work" / "units").mkdir(parents=True)
    return Job(str(tmp_path), BuildArguments("text"), "tokenizers", "</s>")


def lay_out(ids, limit, sentence_ends=None, document_ends=None):
    """(sentences without those that end documents, cuts at words, cuts inside words)."""
    ids = np.array(ids, np.uint32)
    sentence_ends = np.array(sentence_ends or [len(ids)])
    document_ends = np.array(document_ends or [len(sentence_ends)])
    room = len(ids) + len(document_ends)
    out, ends = np.empty(room, np.uint16), np.empty(room + len(sentence_ends), np.int64)
    sizes, chosen = np.zeros((len(document_ends), 2), np.int64), np.ones(len(document_ends), bool)
    total, count, cuts, inside = _layout(
        ids, sentence_ends, document_ends, chosen, BEGINS, limit, END, out, ends, sizes
    )
    sentences = [part.tolist() for part in np.split(out[:total], ends[: count - 1])]
    assert sizes.sum(0).tolist() == [count, total]
    return sentences, cuts, inside


@pytest.mark.parametrize(
    ("ids", "sentences", "cuts", "inside"),
    [
        ([0, 1, 1, 1], [[0, 1, 1, 1]], 0, 0),  # exactly as long as allowed
        ([0, 1, 1, 1, 0], [[0, 1, 1, 1], [0]], 1, 0),  # a word begins exactly there
        ([0, 1, 0, 1, 1], [[0, 1], [0, 1, 1]], 1, 0),
        ([0, 1, 1, 1, 1], [[0, 1, 1, 1], [1]], 0, 1),
        ([0, 1, 1, 2, 2], [[0, 1], [1, 2, 2]], 0, 1),  # not inside a character
        ([1, 2, 2, 2, 2], [[1, 2, 2, 2], [2]], 0, 1),  # one that is longer than a sentence
        ([0, 1, 1, 1] * 3, [[0, 1, 1, 1]] * 3, 2, 0),
    ],
)
def test_where_long_sentences_are_cut(ids, sentences, cuts, inside):
    assert lay_out(ids, 4) == ([*sentences, [END]], cuts, inside)


def test_documents_and_sentences_without_tokens():
    """Sentences 2 and 4 and the second document have none; it gets no end either."""
    sentences, _, _ = lay_out([0, 1, 1], 4, [1, 1, 3, 3], [3, 4])
    assert sentences == [[0], [1, 1], [END]]


def test_a_token_belongs_to_the_sentence_it_begins_in():
    ids, lengths = np.array([0, 1, 1], np.uint32), np.array([3, 2])
    out = np.empty(4, np.int64)
    pieces = (np.array([2, 3]), np.array([5, 7]))
    # the first sentence ends exactly where the second token begins, the second one inside it
    assert _assign(ids, *pieces, np.array([3, 4, 5, 7]), lengths, out) == -1
    assert out.tolist() == [1, 2, 2, 3]
    assert _assign(ids, pieces[0], np.array([5, 8]), np.array([8]), lengths, out) == 1


def test_a_forced_cut_is_between_characters(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 4)
    monkeypatch.setattr(pieces, "LONGEST_WORD", 10)
    data = np.frombuffer(("日" * 6).encode(), np.uint8)
    ends, forced = pieces.cut_into_pieces(data, np.array([18]), True)
    assert (ends.tolist(), forced) == ([9, 18], 1)


def unit_with(job, key, sizes):
    """A unit with documents of (sentences, tokens); its tokens count up."""
    documents = np.zeros(len(sizes), DOCUMENT)
    documents["sentences"] = [1] * len(sizes)
    documents["tokens"] = sizes
    documents.tofile(unit_file(job, key, "train", "documents"))
    np.arange(sum(sizes), dtype="<u2").tofile(unit_file(job, key, "train", "tokens"))
    np.array(sizes, "<u4").tofile(unit_file(job, key, "train", "sentences"))
    return {"key": key, "sizes": {"train": {"documents": len(sizes)}}}


@pytest.mark.parametrize(
    ("limit", "shards"),
    [
        (10, [[3, 4, 3], [5, 5], [12], [1]]),  # the first two are exactly full
        (9, [[3, 4], [3, 5], [5], [12], [1]]),
        (11, [[3, 4, 3], [5, 5], [12], [1]]),
        (12, [[3, 4, 3], [5, 5], [12], [1]]),
        (13, [[3, 4, 3], [5, 5], [12, 1]]),
    ],
)
def test_shards_are_filled_to_the_limit(job, limit, shards):
    object.__setattr__(job.arguments, "shard_tokens", limit)
    records = [unit_with(job, "0", [3, 4, 3, 5]), unit_with(job, "1", [5, 12, 1])]
    tasks = assemble.assign_documents(job, records)
    assert [task.count("tokens") for task in tasks] == [sum(shard) for shard in shards]
    assert [task.count("documents") for task in tasks] == [len(shard) for shard in shards]


@pytest.mark.parametrize("copied", [1, 2, 5, 100])
def test_shards_are_copied_in_several_turns(job, monkeypatch, copied):
    monkeypatch.setattr(assemble, "COPY_TOKENS", copied)
    unit_with(job, "0", [3, 4, 3, 5])
    unit_with(job, "1", [2, 2])
    runs = (
        DocumentRun("0", (1, 4), (1, 4), (3, 15)),
        DocumentRun("1", (0, 2), (0, 2), (0, 4)),
    )
    record = write_shard(job, ShardTask("shard-00000", "train", runs), "uint16")
    load = {name: np.load(Path(job.output, record.file_name(name))) for name in assemble.ARRAYS}
    assert load["tokens"].tolist() == [*range(3, 15), *range(4)]
    assert load["sentence_ends"].tolist() == [4, 7, 12, 14, 16]
    assert load["document_ends"].tolist() == [1, 2, 3, 4, 5]
    assert (record.num_tokens, record.num_sentences, record.num_documents) == (16, 5, 5)


@pytest.fixture
def synced(monkeypatch):
    """The names of the files and folders that were flushed to the disk."""
    names: list[str] = []
    fsync = os.fsync

    def record(descriptor):
        names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return names


def test_files_and_folders_are_flushed(tmp_path, job, synced):
    """Before they get their names: after a power cut they are whole or not there."""
    write_atomically(tmp_path / "a", b"text")
    assert len(synced) == 2
    assert Path(synced[0]).name.startswith(".a.")
    assert synced[1] == str(tmp_path)
    writer = HashingWriter(tmp_path / "b.npy", "uint16", 2)
    writer.write(np.array([1, 2]))
    writer.close()
    assert Path(synced[2]).name.startswith(".b.npy.")
    unit = UnitWriter(job, "0", np.dtype(np.uint16))
    one = np.ones(1, np.int64)
    unit.write("train", TokenBatch(one, one, one, one, 0, 0), np.ones((1, 2), np.uint64), None)
    unit.close()
    assert {Path(name).name.split(".")[2] for name in synced[3:]} == {
        "tokens", "sentences", "documents"
    }  # fmt: skip


def test_bytes_after_the_end_of_a_shard_are_noticed(tmp_path):
    dataset = write_dataset(tmp_path, [[[1, 2]]], vocab_size=4)
    path = tmp_path / dataset.manifest.shards[0].file_name("tokens")
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"\0\0")
    with pytest.raises(DatasetError, match=f"has {size + 2} bytes, the manifest says {size};"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(("size", "bad", "stays"), [(100, 2, True), (100, 3, False),
                                                    (300, 3, True), (300, 4, False)])  # fmt: skip
def test_how_much_may_be_bad(job, size, bad, stays):
    """2 places, or 1% of the document: as many are replaced, more leave it out."""
    raw = RawBatch.join([b"\xff" * bad + b"a" * (size - bad)], "file", [7])
    recorder = Recorder()
    assert _keep(job, raw, normalise(raw), recorder).tolist() == [stays]
    name = "bad_utf8_replaced" if stays else "dropped/bad_utf8"
    assert recorder.counters[name] == (bad if stays else 1)


def test_documents_without_tokens_are_counted(job):
    """Two of four have none: they are no documents of the dataset, and named."""

    class Half:
        """Of the documents the first and the last have a token."""

        dtype = np.dtype(np.uint16)

        def encode(self, data, ends):
            return len(ends)

        def layout(self, number, chosen):
            has = np.array([True, False, False, True])
            ends = np.arange(1, 3)
            return TokenBatch(ends, ends, has.astype(int), has.astype(int), 0, 0)

    raw = RawBatch.join([b"a", b"b", b"c", b"d"], "file", [0, 2, 4, 6])
    recorder = Recorder()
    object.__setattr__(job.arguments, "validation_fraction", 0.0)
    writer = UnitWriter(job, "0", np.dtype(np.uint16))
    _run_batch(job, Half(), raw, recorder, writer)
    writer.abort()
    assert recorder.counters["documents"] == 2
    assert recorder.counters["dropped/document_without_tokens"] == 2
    assert [entry["offset"] for entry in recorder.quarantine] == [2, 4]
