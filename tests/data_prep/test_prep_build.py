"""Builds end to end: the text comes back, whatever the workers, the units and the interruptions."""

from __future__ import annotations

import filecmp
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.build import BuildOptions, build
from data_prep.encode import Encoder
from data_prep.errors import DataPrepError
from data_prep.inspect import document_texts
from data_prep.job import BuildArguments
from data_prep.segment import get_segmenter
from data_prep.shard import open_dataset
from data_prep.sources.base import SourceOptions
from data_prep.tokenizer.engines import ReferenceEngine, get_engine
from data_prep.tokenizer.load import load_tokenizer
from data_prep.verify import verify

ARGUMENTS = BuildArguments(source="text", validation_fraction=0.3, unit_bytes=700)


def texts_of(dataset):
    """All documents of both splits, decoded."""
    return ["".join(s) for split in ("train", "validation") for s in document_texts(dataset, split)]


def same_files(one: Path, other: Path) -> bool:
    """Two folders hold the same files with the same bytes."""
    names = sorted(p.relative_to(one).as_posix() for p in one.rglob("*") if p.is_file())
    others = sorted(p.relative_to(other).as_posix() for p in other.rglob("*") if p.is_file())
    return names == others and not any(filecmp.cmpfiles(one, other, names, shallow=False)[1:])


def test_text_comes_back(tmp_path, corpus, bpe_path):
    dataset = build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    expected = sorted(p.read_text().strip() for p in corpus.iterdir())
    assert sorted(texts_of(dataset)) == expected
    assert dataset.manifest.num_documents["validation"] > 0
    assert dataset.manifest.counters["documents"] == 12
    assert verify(dataset.path) == []
    assert not (dataset.path / ".work").exists()
    for shard in dataset.shards("train"):
        ends = shard.sentence_ends[shard.document_ends.astype(np.int64) - 1].astype(np.int64)
        assert (shard.tokens[ends - 1] == dataset.manifest.tokenizer.end_of_document_id).all()


def test_order_is_that_of_the_input(tmp_path, corpus, bpe_path):
    arguments = replace(ARGUMENTS, validation_fraction=0.0)
    dataset = build([str(corpus)], bpe_path, tmp_path / "out", arguments)
    assert texts_of(dataset) == [p.read_text().strip() for p in sorted(corpus.iterdir())]


def test_all_sources_give_the_same_tokens(tmp_path, corpus, bpe_path):
    one = build([str(corpus)], bpe_path, tmp_path / "a", ARGUMENTS)
    lines = str(tmp_path / "corpus.jsonl")
    two = build([lines], bpe_path, tmp_path / "b", replace(ARGUMENTS, source="jsonl"))
    assert one.manifest.fingerprint == two.manifest.fingerprint


def test_workers_change_nothing(tmp_path, corpus, bpe_path):
    for workers in (1, 3):
        options = BuildOptions(workers=workers)
        build([str(corpus)], bpe_path, tmp_path / str(workers), ARGUMENTS, options)
    assert same_files(tmp_path / "1", tmp_path / "3")


def test_units_change_only_the_arguments(tmp_path, corpus, bpe_path):
    one = build([str(corpus)], bpe_path, tmp_path / "a", ARGUMENTS)
    two = build([str(corpus)], bpe_path, tmp_path / "b", replace(ARGUMENTS, unit_bytes=1 << 20))
    assert one.manifest.fingerprint == two.manifest.fingerprint


def test_shards_roll(tmp_path, corpus, bpe_path):
    arguments = replace(ARGUMENTS, shard_tokens=400)
    dataset = build([str(corpus)], bpe_path, tmp_path / "out", arguments)
    whole = build([str(corpus)], bpe_path, tmp_path / "whole", ARGUMENTS)
    shards = dataset.shards("train")
    assert len(shards) > 2
    assert all(len(s.tokens) <= 400 or len(s.document_ends) == 1 for s in shards)
    joined = np.concatenate([s.tokens for s in shards])
    np.testing.assert_array_equal(joined, whole.shards("train")[0].tokens)
    assert verify(dataset.path) == []


def test_running_again_finds_it_complete(tmp_path, corpus, bpe_path):
    first = build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    stamp = (tmp_path / "out" / "shard-00000.tokens.npy").stat().st_mtime_ns
    second = build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    assert first.manifest == second.manifest
    assert (tmp_path / "out" / "shard-00000.tokens.npy").stat().st_mtime_ns == stamp


def test_a_failed_build_goes_on(tmp_path, corpus, bpe_path, monkeypatch):
    """An error after some units: the next run does the others only, with the same result."""
    from data_prep import build as module
    from data_prep.unit import run_unit

    expected = build([str(corpus)], bpe_path, tmp_path / "whole", ARGUMENTS)
    calls = []

    def failing(job, unit):
        if unit.index == 3:
            raise DataPrepError("a fault")
        return run_unit(job, unit)

    def counting(job, unit):
        calls.append((job.work / "units" / f"{unit.index:06d}.done").exists())
        return run_unit(job, unit)

    monkeypatch.setattr(module, "run_unit", failing)
    with pytest.raises(DataPrepError, match="a fault"):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    monkeypatch.setattr(module, "run_unit", counting)
    build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    assert calls[:4] == [True, True, True, False]
    assert same_files(tmp_path / "out", expected.path)


def command(corpus, tokenizer, output, workers=1, *more):
    return [
        sys.executable, "-m", "data_prep", "build", "--source", "text", "--input", str(corpus),
        "--tokenizer", str(tokenizer), "--output", str(output), "--workers", str(workers),
        "--validation-fraction", "0.1", "--unit-mib", "0.01", *more,
    ]  # fmt: skip


@pytest.fixture
def larger_corpus(tmp_path):
    """Some 0.5 MB in 40 files: 40 units, most of them larger than 10 kB."""
    folder = tmp_path / "larger"
    folder.mkdir()
    for number in range(40):
        lines = [f"Line {n} of file {number}. It says {n * number}.\n\n" for n in range(300)]
        (folder / f"{number:02d}.txt").write_text("".join(lines))
    return folder


def test_terminate_and_resume(tmp_path, larger_corpus, bpe_path):
    output = tmp_path / "out"
    process = subprocess.Popen(
        command(larger_corpus, bpe_path, output, 2), stderr=subprocess.PIPE, text=True
    )
    units = output / ".work" / "units"
    limit = time.monotonic() + 60
    while len(list(units.glob("*.done"))) < 3 and time.monotonic() < limit:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert not (output / "manifest.json").exists()
    assert "run the same command again" in error
    assert "Traceback" not in error
    subprocess.run(command(larger_corpus, bpe_path, output, 1), check=True, capture_output=True)
    subprocess.run(
        command(larger_corpus, bpe_path, tmp_path / "whole", 1), check=True, capture_output=True
    )
    assert same_files(output, tmp_path / "whole")


def test_files_of_killed_workers_go(tmp_path, corpus, bpe_path, monkeypatch):
    """A worker that was killed while it wrote a shard leaves a temporary file behind."""
    from data_prep import build as module

    monkeypatch.setattr(module, "write_shard", _fail)
    with pytest.raises(DataPrepError, match="a fault"):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    monkeypatch.undo()
    (tmp_path / "out" / ".shard-00000.tokens.npy.123.tmp").write_bytes(b"half")
    build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    assert not list((tmp_path / "out").rglob("*.tmp"))
    build([str(corpus)], bpe_path, tmp_path / "whole", ARGUMENTS)
    assert same_files(tmp_path / "out", tmp_path / "whole")


def _fail(*arguments):
    raise DataPrepError("a fault")


def test_two_builds_at_once(tmp_path, corpus, bpe_path, monkeypatch):
    """The second is refused while the first is running."""
    from data_prep import build as module
    from data_prep import lock
    from data_prep.errors import UsageError

    monkeypatch.setattr(lock, "WAIT_S", 0.1)

    def second(job, unit):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)

    monkeypatch.setattr(module, "run_unit", second)
    with pytest.raises(UsageError, match="another build is writing"):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)


TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["Mr. ", "a", " ", "\n\n", "\n", ". ", "! ", "… ", "“Q.” ", "x" * 60]),
        st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), max_size=6),
    ),
    max_size=25,
).map(lambda parts: "".join(parts).removeprefix("\ufeff").strip(" \n\t"))  # fmt: skip


@pytest.mark.parametrize("engine", ["tokenizers", "auto"])
@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(documents=st.lists(TEXTS.filter(bool), min_size=1, max_size=4), limit=st.integers(2, 9))
def test_tokens_are_those_of_the_whole_text(bpe_path, engine, documents, limit):
    """Sentences joined are the document's tokens; they decode to its text; none is too long."""
    loaded = load_tokenizer(bpe_path)
    encoder = Encoder(loaded, get_engine(engine, loaded), get_segmenter("fast"), limit)
    tokens = _lay_out(encoder, documents)
    reference = loaded.reference()
    start = 0
    for document, size in zip(documents, tokens.document_tokens.tolist(), strict=True):
        ids = tokens.tokens[start : start + size].tolist()
        assert ids == [*reference.encode(document).ids, loaded.end_of_document_id]
        assert reference.decode(ids[:-1], skip_special_tokens=False) == document
        start += size
    assert tokens.sentence_lengths.max() <= limit
    assert tokens.sentence_lengths.min() >= 1
    assert tokens.sentence_lengths.sum() == len(tokens.tokens)
    assert tokens.document_sentences.sum() == len(tokens.sentence_lengths)


def _lay_out(encoder, documents):
    data = np.frombuffer("".join(documents).encode(), np.uint8)
    ends = np.cumsum([len(d.encode()) for d in documents])
    return encoder.layout(encoder.encode(data, ends), np.ones(len(documents), np.bool_))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(documents=st.lists(TEXTS.filter(bool), min_size=1, max_size=3))
def test_wordpiece_tokens_are_those_of_the_whole_text(wordpiece_path, documents):
    loaded = load_tokenizer(wordpiece_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 256)
    tokens = _lay_out(encoder, documents)
    reference, start = loaded.reference(), 0
    for document, size in zip(documents, tokens.document_tokens.tolist(), strict=True):
        expected = reference.encode(document, add_special_tokens=False).ids
        assert tokens.tokens[start : start + size].tolist() == expected + [3] * bool(expected)
        start += size


def test_other_tokenizers_use_offsets(tmp_path):
    """A tokenizer that marks words with a prefix: sentences are cut by the offsets."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "</s>", "▁One", "▁two", ".", "▁É", "▁Three"]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 256)
    tokens = _lay_out(encoder, ["One two. Three É two.", "É. One"])
    assert loaded.kind == "other"
    expected = loaded.reference().encode("One two. Three É two.").ids
    assert tokens.tokens.tolist()[: len(expected)] == expected
    assert tokens.document_sentences.tolist() == [3, 3]


def test_long_sentences_are_cut_at_words(bpe_path):
    loaded = load_tokenizer(bpe_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 8)
    tokens = _lay_out(encoder, ["went " * 30 + "z" * 40])
    ends = np.cumsum(tokens.sentence_lengths)
    pieces = [loaded.reference().decode(p.tolist()) for p in np.split(tokens.tokens, ends[:-1])]
    assert all(p.startswith(" ") for p in pieces[1:5])
    assert tokens.num_cut >= 4
    assert tokens.num_cut_words >= 4


def test_long_documents_are_encoded_in_pieces(bpe_path, monkeypatch):
    from data_prep import encode as module

    monkeypatch.setattr(module, "PIECE_BYTES", 50)
    loaded = load_tokenizer(bpe_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 256)
    document = "Dr. Smith went to Washington,  and\n\nstayed. " * 30 + "end"
    tokens = _lay_out(encoder, [document])
    assert tokens.tokens.tolist()[:-1] == loaded.reference().encode(document).ids
    assert encoder.num_forced == 0
    _lay_out(encoder, ["日" * 200])
    assert encoder.num_forced > 0


WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def test_held_out_depends_on_the_text_only(tmp_path, bpe_path):
    for name, texts in (("a", WORDS), ("b", [*WORDS[::-1], "one", "two"])):
        (tmp_path / name).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / name / f"{number}.txt").write_text(text * 5)
    sides = []
    for name in ("a", "b"):
        arguments = replace(ARGUMENTS, validation_fraction=0.5)
        dataset = build([str(tmp_path / name)], bpe_path, tmp_path / f"out-{name}", arguments)
        sides.append({"".join(t) for t in document_texts(dataset, "validation")})
    assert sides[0] == sides[1]
    assert 0 < len(sides[0]) < len(WORDS)


def test_wide_vocabularies_take_uint32(tmp_path, corpus, bpe_path):
    values = json.loads((bpe_path / "tokenizer.json").read_text())
    size = len(values["model"]["vocab"])
    for number in range(size, 70_000):
        values["model"]["vocab"][f"<never-{number}>"] = number
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "tokenizer.json").write_text(json.dumps(values))
    wide = build([str(corpus)], tmp_path / "wide", tmp_path / "out", ARGUMENTS)
    narrow = build([str(corpus)], bpe_path, tmp_path / "narrow", ARGUMENTS)
    assert wide.shards("train")[0].tokens.dtype == np.uint32
    assert narrow.shards("train")[0].tokens.dtype == np.uint16
    np.testing.assert_array_equal(wide.shards("train")[0].tokens, narrow.shards("train")[0].tokens)


def test_source_options_reach_the_workers(tmp_path, bpe_path):
    (tmp_path / "blocks.txt").write_text("One.\n\n \t\nTwo.\r\n\r\nThree.\nStill three.\n")
    arguments = BuildArguments(
        "text", SourceOptions(split_blank_lines=True), validation_fraction=0.0
    )
    dataset = build([str(tmp_path / "blocks.txt")], bpe_path, tmp_path / "out", arguments)
    assert texts_of(dataset) == ["One.", "Two.", "Three.\nStill three."]
    assert open_dataset(dataset.path).manifest == dataset.manifest
    assert os.listdir(dataset.tokenizer_path)


def test_progress_bar(tmp_path, corpus, bpe_path, capfd):
    build([str(corpus)], bpe_path, tmp_path / "a", ARGUMENTS, BuildOptions(show_progress=True))
    shown = capfd.readouterr().err
    assert "100%" in shown
    assert "documents=12" in shown
    build([str(corpus)], bpe_path, tmp_path / "b", ARGUMENTS)
    assert capfd.readouterr().err == ""
