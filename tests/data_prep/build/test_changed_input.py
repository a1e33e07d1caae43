"""A rerun of a build on input that is not what it was: named, with what differs and the cure."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import data_prep.build.build
from data_prep.build.input_record import ACCEPTED, NAME, change_since, write_record
from data_prep.segment.fast import VERSION
from data_prep.sources.listing import END_BYTES, input_file
from data_prep.sources.registry import find_input, get_source

LONG = "A sentence of a long text. " * 2000


@pytest.fixture
def prepare(run, corpus, bpe_path, tmp_path):
    """prepare(option, ...) -> (exit code, standard output, error) of a build of the corpus."""
    (corpus / "long.txt").write_text(LONG)
    for path in corpus.iterdir():
        os.utime(path, ns=(10**18, 10**18))
    given = ("--source", "text", "--input", corpus, "--tokenizer", bpe_path, "--workers", 1)
    given += ("--validation-fraction", 0)

    def build(*more: str) -> tuple[int, str, str]:
        return run("build", *given, "--output", tmp_path / "out", *more)

    return build


@pytest.fixture(params=["complete", "killed"])
def begun(request, prepare, tmp_path, monkeypatch) -> Path:
    """An output folder with a finished build, or one that was killed when its units were done."""
    with monkeypatch.context() as patch:
        if request.param == "killed":
            patch.setattr(data_prep.build.build, "_write_shards", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                prepare()
        else:
            assert prepare()[0] == 0
    return tmp_path / "out"


def edit(path: Path, place: int, letter: bytes, touch: bool = True) -> None:
    """Overwrites a letter; with or without another time of modification."""
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(letter)
    if not touch:
        os.utime(path, ns=(10**18, 10**18))


def refused(result: tuple[int, str, str], *parts: str) -> None:
    code, _, error = result
    assert code == 2
    assert error.count("\n") == 1
    for part in ("was built from other input: ", *parts):
        assert part in error


def test_the_same_input_goes_on_silently(prepare, begun):
    code, _, error = prepare()
    assert (code, error) == (0, "")
    assert (begun / NAME).is_file()


@pytest.mark.parametrize("place", [0, END_BYTES - 1, len(LONG) - END_BYTES, len(LONG) - 1])
def test_an_edit_at_an_end_that_keeps_the_size(prepare, begun, corpus, place):
    edit(corpus / "long.txt", place, b"#", touch=False)
    message = f"long.txt has other contents of the same {len(LONG)} bytes; choose another output"
    refused(prepare(), message)
    refused(prepare("--input-changed", "accept"), message)


def test_an_edit_in_the_middle_shows_in_the_time(prepare, begun, corpus):
    edit(corpus / "long.txt", len(LONG) // 2, b"#")
    refused(prepare(), "long.txt was modified at ", "add --input-changed accept, else choose")


def test_a_copy_or_a_touch_can_be_accepted(prepare, begun, corpus):
    for path in corpus.iterdir():
        os.utime(path)
    refused(prepare(), "00.txt was modified at ", "(and 12 more); if its text is the same")
    code, _, error = prepare("--input-changed", "accept")
    assert (code, error) == (0, "")
    assert prepare()[::2] == (0, "")  # once is enough
    os.utime(corpus / "03.txt", ns=(10**18, 10**18 + 1))
    refused(prepare(), "00.txt was modified at ", "(and 12 more); if its text is the same")


def test_an_acceptance_that_cannot_be_kept_is_said(prepare, begun, corpus):
    (begun / ACCEPTED).mkdir()
    os.utime(corpus / "03.txt")
    code, _, error = prepare("--input-changed", "accept")
    assert code == 0
    assert error.startswith(f"warning: {begun / ACCEPTED} cannot be written (Is a directory): give")
    assert error.count("\n") == 1


def test_another_size_a_new_and_a_missing_file(prepare, begun, corpus):
    size = (corpus / "03.txt").stat().st_size
    (corpus / "03.txt").write_text("Short.")
    refused(prepare(), f"03.txt had {size} bytes and has 6; choose another output")
    (corpus / "02b.txt").write_text("New.")
    refused(prepare(), "02b.txt was not in it (and 1 more); choose")
    (corpus / "01.txt").unlink()
    refused(prepare(), "01.txt was in it and is not now (and 2 more); choose")


def test_a_file_by_another_path(prepare, begun, corpus):
    (corpus / "03.txt").rename(corpus / "93.txt")
    line = f"03.txt is {corpus / '93.txt'} now; name it as before, choose another output"
    refused(prepare(), line)
    (corpus / "93.txt").write_text("Short.")
    refused(prepare(), "03.txt was in it and is not now (and 1 more); choose")


def test_a_build_of_an_earlier_version_says_what_is_not_known(prepare, begun, corpus):
    folder = begun / ".work" if (begun / ".work").exists() else begun
    (folder / NAME).unlink()
    code, _, error = prepare()
    assert code == 0
    assert error.startswith(f"warning: {begun} has no {NAME}")
    assert error.count("\n") == 1
    (corpus / "new.txt").write_text("New.")
    (begun / NAME).unlink(missing_ok=True)
    code, _, error = prepare()
    assert code == 2
    assert "was built from other input: 13 files" in error


def test_sentences_of_an_earlier_segmenter_are_not_mixed_in(prepare, begun):
    """A build of the first version stored no version: finished it stays, unfinished it ends."""
    complete = (begun / "manifest.json").exists()
    path = begun / "manifest.json" if complete else begun / ".work" / "job.json"
    values = json.loads(path.read_text())
    arguments = values["arguments"] if complete else values
    del arguments["segmenter_version"], arguments["language"]
    path.write_text(json.dumps(values))
    code, _, error = prepare()
    if complete:
        warning = f"warning: the sentences of {begun} are those of version 1 of the segmenter fast"
        assert (code, error.startswith(warning)) == (0, True)
        assert json.loads(path.read_text()) == values
    else:
        cure = f"not '{VERSION}'; choose another output, or remove it"
        assert (code, f"built with segmenter-version '1', {cure}" in error) == (2, True)
    code, _, error = prepare("--language", "de")
    assert (code, "built with language 'en', not 'de'" in error) == (2, True)


def test_the_record_is_in_the_manifest_and_verified(prepare, run, tmp_path):
    assert prepare()[0] == 0
    out = tmp_path / "out"
    arguments = json.loads((out / "manifest.json").read_text())["arguments"]
    assert len(arguments["input_record"]) == 64
    assert run("verify", out, "--quiet")[0] == 0
    (out / NAME).write_bytes(b"damaged")
    code, _, error = run("verify", out, "--quiet")
    assert code == 3
    assert f"{NAME}: missing or damaged" in error
    code, _, error = prepare()
    assert code == 2
    assert f"{NAME} cannot be read" in error


def test_a_folder_taken_as_one_is_recorded_too(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text('{"text": "one"}\n')
    source = get_source("hf")
    files = find_input(source, [str(folder)])
    write_record(tmp_path, files)
    assert change_since(tmp_path / NAME, find_input(source, [str(folder)])) is None
    edit(folder / "b.jsonl", 10, b"w")
    change = change_since(tmp_path / NAME, find_input(source, [str(folder)]))
    assert change is not None
    assert not change.times_only


def test_only_the_ends_of_files_are_read(tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_text(LONG)
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: read.append(given[1]) or pread(*given))
    input_file(str(tmp_path / "x.txt"))
    assert read == [END_BYTES, END_BYTES]


def test_a_finished_dataset_is_finished_where_none_can_write(prepare, monkeypatch, tmp_path):
    assert prepare()[0] == 0
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert prepare()[0] == 0
    (tmp_path / "out" / "manifest.json").unlink()
    code, _, error = prepare()
    assert (code, "no permission, or a read-only file system" in error) == (2, True)
