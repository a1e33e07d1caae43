"""Builds end to end: the text comes back, whatever the workers, the units and the interruptions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from decoded import document_texts

from data_prep.__main__ import main
from data_prep.build import progress
from data_prep.build.build import BuildOptions, build
from data_prep.build.job import BuildArguments
from data_prep.dataset.verify import verify
from data_prep.errors import DataPrepError
from data_prep.format.shard import open_dataset
from data_prep.sources.options import SourceOptions

ARGUMENTS = BuildArguments(source="text", validation_fraction=0.3, unit_bytes=700)


def texts_of(dataset):
    """All documents of both splits, decoded."""
    return ["".join(s) for split in ("train", "validation") for s in document_texts(dataset, split)]


def test_text_comes_back(tmp_path, corpus, bpe_path):
    dataset = build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    expected = sorted(p.read_text().strip() for p in corpus.iterdir())
    assert sorted(texts_of(dataset)) == expected
    assert dataset.manifest.num_documents["validation"] > 0
    assert dataset.manifest.counters["documents"] == 12
    assert verify(dataset.path) == []
    assert not (dataset.path / ".work").exists()
    for shard in dataset.shards("train"):
        ends = shard.sentence_ends[shard.document_ends[:].astype(np.int64) - 1].astype(np.int64)
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


def test_a_failed_build_goes_on(tmp_path, corpus, bpe_path, monkeypatch, same_files):
    """An error after some units: the next run does the others only, with the same result."""
    from data_prep.build import build as module
    from data_prep.build.unit import run_unit

    expected = build([str(corpus)], bpe_path, tmp_path / "whole", ARGUMENTS)
    calls = []

    def failing(job, unit):
        if unit.index == 3:
            raise DataPrepError("a fault")
        return run_unit(job, unit)

    def counting(job, unit):
        calls.append((job.work / "units" / f"{unit.key}.done").exists())
        return run_unit(job, unit)

    monkeypatch.setattr(module, "run_unit", failing)
    with pytest.raises(DataPrepError, match="a fault"):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    monkeypatch.setattr(module, "run_unit", counting)
    build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    assert calls[:4] == [True, True, True, False]
    assert same_files(tmp_path / "out", expected.path)


@pytest.fixture
def larger_corpus(tmp_path):
    """Some 0.5 MB in 40 files: 40 units, most of them larger than 10 kB."""
    folder = tmp_path / "larger"
    folder.mkdir()
    for number in range(40):
        lines = [f"Line {n} of file {number}. It says {n * number}.\n\n" for n in range(300)]
        (folder / f"{number:02d}.txt").write_text("".join(lines))
    return folder


@pytest.mark.slow  # test_streams.py: SIGTERM
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_terminate_and_resume(tmp_path, larger_corpus, bpe_path, build_command, same_files, how):
    def command(output, workers):
        more = ("--validation-fraction", "0.1", "--unit-mib", "0.01")
        return build_command(larger_corpus, bpe_path, output, workers, *more)

    output = tmp_path / "out"
    process = subprocess.Popen(command(output, 2), stderr=subprocess.PIPE, text=True)
    units = output / ".work" / "units"
    limit = time.monotonic() + 60
    while len(list(units.glob("*.done"))) < 3 and time.monotonic() < limit:
        time.sleep(0.005)
    process.send_signal(how)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130, error
    assert not (output / "manifest.json").exists()
    assert "run the same command again" in error
    assert "Traceback" not in error
    for folder in (output, tmp_path / "whole"):
        assert main(command(folder, 1)[3:]) == 0
    assert same_files(output, tmp_path / "whole")


def test_files_of_killed_workers_go(tmp_path, corpus, bpe_path, monkeypatch, same_files):
    """A worker that was killed while it wrote a shard leaves a temporary file behind."""
    from data_prep.build import build as module

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
    from data_prep.build import build as module
    from data_prep.errors import UsageError
    from data_prep.format import lock

    monkeypatch.setattr(lock, "WAIT_S", 0.1)

    def second(job, unit):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)

    monkeypatch.setattr(module, "run_unit", second)
    with pytest.raises(UsageError, match="another build is writing"):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)


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
    reference = BuildOptions(engine="tokenizers")
    wide = build([str(corpus)], tmp_path / "wide", tmp_path / "out", ARGUMENTS, reference)
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


def test_progress_is_a_bar_or_lines(tmp_path, corpus, bpe_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    build([str(corpus)], bpe_path, tmp_path / "c", ARGUMENTS, BuildOptions(show_progress=True))
    last = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"build 100% \| 12 documents, \d+/s \| 0 dropped \| left 0:00:00", last)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    build([str(corpus)], bpe_path, tmp_path / "a", ARGUMENTS, BuildOptions(show_progress=True))
    shown = capfd.readouterr().err
    assert "100%" in shown
    assert "documents=12" in shown
    build([str(corpus)], bpe_path, tmp_path / "b", ARGUMENTS)
    assert capfd.readouterr().err == ""
