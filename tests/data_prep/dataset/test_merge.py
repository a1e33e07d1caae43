"""Merging, exact deduplication, --dry-run, and the data card."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from decoded import document_texts

from data_prep.__main__ import main
from data_prep.build import progress
from data_prep.build.build import build
from data_prep.build.deduplicate import find_duplicates
from data_prep.build.job import BuildArguments, Job
from data_prep.build.unit_files import DOCUMENT
from data_prep.dataset.merge import merge
from data_prep.dataset.verify import verify
from data_prep.errors import DatasetError, UsageError
from data_prep.format.shard import write_dataset

ARGUMENTS = BuildArguments(source="text", validation_fraction=0.3, unit_bytes=700)


def texts(dataset, split):
    return ["".join(sentences) for sentences in document_texts(dataset, split)]


def test_merge(tmp_path, corpus, bpe_path):
    paths = sorted(corpus.iterdir())
    halves = []
    for name, files in (("a", paths[:5]), ("b", paths[5:])):
        arguments = replace(ARGUMENTS, shard_tokens=300)
        halves.append(build([str(f) for f in files], bpe_path, tmp_path / name, arguments))
    merged = merge([h.path for h in halves], tmp_path / "both")
    assert verify(merged.path) == []
    for split in ("train", "validation"):
        assert texts(merged, split) == texts(halves[0], split) + texts(halves[1], split)
    names = [s.name for s in merged.manifest.shards]
    assert len(names) == len(set(names))
    assert merged.manifest.counters["documents"] == 12
    assert merged.manifest.arguments == {
        "merged": [h.manifest.fingerprint for h in halves],
        "validation_fraction": 0.3,
    }


def test_verify_and_merge_say_how_far_they_are(tmp_path, corpus, bpe_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    halves = [str(build([str(corpus)], bpe_path, tmp_path / n, ARGUMENTS).path) for n in "ab"]
    for name, command in (
        ("verify", ["verify", halves[0]]),
        ("merge", ["merge", *halves, "--output", str(tmp_path / "both")]),
    ):
        assert main(command) == 0
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) % 3 == 0, "a line for each file of a shard"
        shares = [int(re.match(rf"{name} (\d+)% \| left ", line)[1]) for line in lines]
        assert shares == sorted(shares)
        assert shares[-1] == 100
    assert main(["verify", halves[0], "--quiet"]) == 0
    assert capfd.readouterr().err == ""


def test_merge_command(tmp_path, run):
    for name in ("a", "b"):
        write_dataset(tmp_path / name, [[[1]]], vocab_size=9)
    code, out, _ = run("merge", tmp_path / "a", tmp_path / "b", "--output", tmp_path / "c")
    assert code == 0
    assert "train: 2 documents" in out
    assert run("verify", tmp_path / "c")[0] == 0


def test_merge_refuses(tmp_path, run):
    write_dataset(tmp_path / "a", [[[1]]], vocab_size=9)
    write_dataset(tmp_path / "b", [[[1]]], vocab_size=10)
    write_dataset(tmp_path / "c", [[[1]]], vocab_size=9, end_of_document_id=2)
    with pytest.raises(UsageError, match="differ in vocab_size"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    with pytest.raises(UsageError, match=r"different tokenizers \(end_of_document_id\)"):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "out")
    with pytest.raises(UsageError, match="is not empty"):
        merge([tmp_path / "a", tmp_path / "a"], tmp_path / "b")
    with pytest.raises(UsageError, match="at least two"):
        merge([tmp_path / "a"], tmp_path / "out")
    damaged = tmp_path / "a" / "shard-00000.tokens.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\7")
    with pytest.raises(DatasetError, match=r"shard-00000.tokens.npy: damaged"):
        merge([tmp_path / "a", tmp_path / "a"], tmp_path / "out")


def test_merge_refuses_other_fractions(tmp_path, corpus, bpe_path):
    """A text held out of one dataset would be in the training split of the other."""
    a, b, c = (
        build([str(corpus)], bpe_path, tmp_path / n, replace(ARGUMENTS, validation_fraction=f)).path
        for n, f in (("a", 0.3), ("b", 0.0), ("c", 0.3))
    )
    with pytest.raises(UsageError, match=r"fraction 0\.0, .*a has 0\.3.*build them with the same"):
        merge([a, b], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    both = merge([a, c], tmp_path / "both")
    assert "copies of a text are on one side" in (both.path / "README.md").read_text()
    with pytest.raises(UsageError, match="build them with the same"):
        merge([both.path, b], tmp_path / "out")  # a merged one knows its fraction


def test_card_of_datasets_with_an_unknown_split(tmp_path):
    for name in ("a", "b"):
        write_dataset(tmp_path / name, [[[1]]], vocab_size=9, validation=[[[1]]])
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert "a text may be on both sides" in (tmp_path / "c" / "README.md").read_text()


def test_deduplicate(tmp_path, bpe_path):
    rng = random.Random(0)
    documents = [f"Text number {rng.randrange(40)}. It is so." for _ in range(120)]
    (tmp_path / "x.txt").write_text("\n\n".join(documents))
    arguments = replace(
        ARGUMENTS,
        options=replace(ARGUMENTS.options, split_blank_lines=True),
        deduplicate=True,
        validation_fraction=0.3,
    )
    dataset = build([str(tmp_path / "x.txt")], bpe_path, tmp_path / "out", arguments)
    found = texts(dataset, "train") + texts(dataset, "validation")
    assert Counter(found) == Counter(set(documents))
    for split in ("train", "validation"):  # of equal documents the first stays
        kept = texts(dataset, split)
        assert kept == [d for d in dict.fromkeys(documents) if d in set(kept)]
    assert dataset.manifest.counters["documents"] == len(found)
    dropped = dataset.manifest.counters["dropped/duplicate_document"]
    assert dropped == len(documents) - len(found)
    assert verify(dataset.path) == []


def test_duplicates_do_not_depend_on_the_passes(tmp_path):
    rng = np.random.default_rng(0)
    job = Job(str(tmp_path), ARGUMENTS, "tokenizers", "x")
    (job.work / "units").mkdir(parents=True)
    records, seen, expected = [], set(), {}
    for unit in range(4):
        table = np.zeros(200, DOCUMENT)
        table["hash"] = rng.integers(0, 12, (200, 2))
        table.tofile(job.work / "units" / f"{unit:07d}.train.documents")
        records.append({"key": f"{unit:07d}", "sizes": {"train": {"documents": 200}}})
        for number, pair in enumerate(map(tuple, table["hash"].tolist())):
            if pair in seen:
                expected.setdefault(f"{unit:07d}", []).append(number)
            seen.add(pair)
    for documents_in_a_pass in (10_000, 300, 50):
        found = find_duplicates(job, records, documents_in_a_pass)
        assert {unit: d.tolist() for (unit, _), d in found.items()} == expected


def test_dry_run(tmp_path, corpus, bpe_path, run):
    arguments = ("build", "--source", "text", "--input", corpus, "--tokenizer", bpe_path)
    code, out, error = run(*arguments, "--output", tmp_path / "x" / "out", "--dry-run")
    assert code == 0, error
    assert not (tmp_path / "x").exists()
    dataset = build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    found = {
        name: int(re.search(rf"^{name} +([\d,]+)", out, re.MULTILINE)[1].replace(",", ""))
        for name in ("documents", "sentences", "tokens")
    }
    # a corpus this small is sampled whole
    assert found["documents"] == 12
    assert found["tokens"] == sum(dataset.manifest.num_tokens.values())
    assert found["sentences"] == sum(dataset.manifest.num_sentences.values())
    assert "hours with" in out


def test_data_card(tmp_path, corpus, bpe_path):
    dataset = build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)
    card = (dataset.path / "README.md").read_text()
    manifest = dataset.manifest
    assert manifest.fingerprint in card
    assert f"| train | {manifest.num_documents['train']} | " in card
    assert "| documents | 12 |" in card
    assert "| max-sentence-tokens | 256 |" in card
    assert all(line.count("|") in (0, 3, 7) for line in card.splitlines()), card
