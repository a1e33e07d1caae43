"""Every loss has a name: in quarantine.jsonl, in a message, in the docs."""

from __future__ import annotations

import errno
import gzip
import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.build.build import BuildOptions, build
from data_prep.build.input_record import NAME as INPUT_RECORD
from data_prep.build.job import BuildArguments
from data_prep.dataset.merge import merge
from data_prep.errors import DataPrepError, UsageError
from data_prep.sources.long_documents import MAX_DOCUMENT_BYTES
from data_prep.sources.options import SourceOptions

DOCS = Path(__file__).parents[3] / "docs" / "shard_format.md"


def test_duplicates_are_named(tmp_path, bpe_path):
    """With file and offset, in every unit and split; the first of each stays."""
    texts = [f"Text {n % 7}. It ends." for n in range(21)]
    for name, part in (("a", texts[:10]), ("b", texts[10:])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in part)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    arguments = BuildArguments("jsonl", deduplicate=True, validation_fraction=0.5, unit_bytes=200)
    dataset = build([str(tmp_path / "*.jsonl")], bpe_path, tmp_path / "out", arguments)
    entries = read_lines(tmp_path / "out/quarantine.jsonl")
    size = len(json.dumps({"text": texts[0]})) + 1
    expected = [("a", n * size) for n in range(7, 10)] + [("b", n * size) for n in range(11)]
    found = sorted((Path(e["file"]).stem, e["offset"]) for e in entries)
    assert found == expected
    assert {e["reason"] for e in entries} == {"duplicate_document"}
    assert dataset.manifest.counters["dropped/duplicate_document"] == len(entries) == 14
    assert not list((tmp_path / "out").glob("*.names"))


def test_what_was_not_utf8_is_named(tmp_path, bpe_path):
    """Each file with its encoding, once, each document with how much was replaced; also merged."""
    folder = tmp_path / "in"
    folder.mkdir()
    latin = "Un été très agréable, où l'on dort à midi. " * 3
    lines = b"".join(json.dumps({"text": f"Plain {n}."}).encode() + b"\n" for n in range(30))
    damaged = json.dumps({"text": "Good text. " * 30}).encode()[:-2]
    (folder / "a.jsonl").write_bytes(lines)
    wide = (lines.decode() + json.dumps({"text": latin}) + "\n") * 20
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(wide.encode("utf-16")))
    (folder / "c.jsonl").write_bytes(lines + damaged + b'\xe9 and \xe9 "}\n' + lines)
    old = json.dumps({"text": latin}, ensure_ascii=False).encode("cp1252")
    (folder / "d.jsonl").write_bytes(old)
    arguments = BuildArguments("jsonl", validation_fraction=0.5, unit_bytes=500)
    as_utf8 = replace(arguments, options=SourceOptions(encoding="utf-8"))
    first = build([str(folder / "[abd]*")], bpe_path, tmp_path / "first", arguments)
    second = build([str(folder / "c.jsonl")], bpe_path, tmp_path / "second", as_utf8)
    named = [
        {"file": f"{folder}/b.jsonl.gz", "offset": 0, "encoding": "utf-16"},
        {"file": f"{folder}/d.jsonl", "offset": 0, "encoding": "cp1252"},
    ]
    replaced = [{"file": f"{folder}/c.jsonl", "offset": len(lines), "replaced": 2}]
    assert first.manifest.counters["documents"] == 30 + 20 * 31 + 1
    assert read_lines(first.path / "decoded.jsonl") == named
    assert read_lines(second.path / "decoded.jsonl") == replaced
    merged = merge([first.path, second.path], tmp_path / "merged")
    assert read_lines(merged.path / "decoded.jsonl") == named + replaced


def test_a_file_whose_name_is_no_utf8_can_be_found_again(tmp_path, bpe_path):
    folder = tmp_path / "in"
    folder.mkdir()
    name = b"caf\xe9.txt"
    Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes("Un caf\xe9.".encode("cp1252"))
    dataset = build([str(folder)], bpe_path, tmp_path / "out", BuildArguments("text"))
    [entry] = read_lines(dataset.path / "decoded.jsonl")
    assert os.fsencode(entry["file"]) == os.fsencode(folder) + b"/" + name


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_pipe_as_input_is_refused(tmp_path, bpe_path, whole_folder):
    """Nobody may ever write into it."""
    os.mkfifo(tmp_path / "pipe.txt")
    given = tmp_path if whole_folder else tmp_path / "pipe.txt"
    with pytest.raises(UsageError, match=r"pipe\.txt is a pipe or a device"):
        build([str(given)], bpe_path, tmp_path / "out", BuildArguments("text"))


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_shared_memory_is_not_called_the_output(tmp_path, corpus, bpe_path, code, monkeypatch):
    def fail(*_):
        raise OSError(code, "No space left on device" if code == errno.ENOSPC else "Read-only")

    monkeypatch.setattr(multiprocessing.context.SpawnContext, "Lock", fail)
    monkeypatch.setattr(multiprocessing.context.BaseContext, "Lock", fail)
    with pytest.raises(DataPrepError, match=r"worker processes cannot be .* /dev/shm.*--workers 1"):
        build([str(corpus)], bpe_path, tmp_path / "out", BuildArguments("text", unit_bytes=1),
              BuildOptions(workers=2))  # fmt: skip
    # What one worker does at a time needs no other process.
    build(
        [str(corpus)], bpe_path, tmp_path / "one", BuildArguments("text"), BuildOptions(workers=2)
    )


def test_other_input_is_told_without_hashes(tmp_path, corpus, bpe_path, capsys):
    """Also where an earlier version left no record of the files."""
    build([str(corpus)], bpe_path, tmp_path / "out", BuildArguments("text"))
    (tmp_path / "out" / INPUT_RECORD).unlink()
    size = sum(path.stat().st_size for path in corpus.iterdir())
    (corpus / "new.txt").write_text("123456789.")
    with pytest.raises(UsageError) as error:
        build([str(corpus)], bpe_path, tmp_path / "out", BuildArguments("text"))
    expected = f"other input: 12 files, {size} bytes, not 13 files, {size + 10} bytes; choose"
    assert expected in str(error.value)
    (corpus / "new.txt").unlink()
    (corpus / "00.txt").rename(corpus / "moved.txt")
    with pytest.raises(UsageError, match=r"12 files, \d+ bytes, but other paths or sizes"):
        build([str(corpus)], bpe_path, tmp_path / "out", BuildArguments("text"))


def test_the_docs_say_what_is_done_to_text():
    said = DOCS.read_text()
    assert f"more than {MAX_DOCUMENT_BYTES >> 20} MiB is split" in said
    for what in ("CR LF", "U+2028", "U+2029", "U+0085", "NUL", "byte order mark", "U+FFFD"):
        assert what in said, what


def test_small_files_are_worked_on_together(tmp_path, bpe_path, monkeypatch):
    """Each is named as itself all the same."""
    from data_prep.build import unit

    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02d}.txt").write_text(" \n" if number % 20 == 7 else f"File {number}.")
    batches = []
    clean = unit.clean_documents
    monkeypatch.setattr(unit, "clean_documents", lambda *a: batches.append(a[0]) or clean(*a))
    dataset = build(
        [str(folder)], bpe_path, tmp_path / "out", BuildArguments("text", validation_fraction=0.0)
    )
    assert [len(batch.starts) for batch in batches] == [60]
    assert dataset.manifest.counters["documents"] == 57
    entries = read_lines(tmp_path / "out/quarantine.jsonl")
    assert [Path(e["file"]).stem for e in entries] == ["07", "27", "47"]
