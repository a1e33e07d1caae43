"""Wrong input to the commands: one clear line on standard error, the right code, no traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from one_line import check


@pytest.fixture
def prepare(tmp_path, corpus, bpe_path, run):
    """Run ``build`` with small defaults; keywords replace options, ``more`` are added."""

    def run_build(*more, **replaced):
        options = {
            "source": "text", "input": corpus, "tokenizer": bpe_path,
            "output": tmp_path / "out", "workers": 1, **replaced,
        }  # fmt: skip
        pairs = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
        return run("build", *(item for pair in pairs for item in pair), *more)

    return run_build


def test_good_run(prepare, run, tmp_path):
    code, out, error = prepare("--validation-fraction", "0.2")
    assert code == 0, error
    assert re.search(r"train: [1-9]", out)
    assert run("verify", tmp_path / "out")[0] == 0


def test_empty_file(prepare, tmp_path):
    (tmp_path / "empty.txt").touch()
    check(prepare(input=tmp_path / "empty.txt"), 2, "empty.txt of 0 bytes")


def test_empty_folder(prepare, tmp_path):
    (tmp_path / "folder").mkdir()
    check(prepare(input=tmp_path / "folder"), 2, "holds no file that ends in .txt")


def test_file_of_white_space(prepare, tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n\0")
    check(
        prepare(input=tmp_path / "blank.txt"), 3, "no document that can be used", "empty_document"
    )


def test_an_empty_file_among_others_is_counted(prepare, corpus, tmp_path):
    (corpus / "empty.txt").touch()
    assert "dropped/empty_file: 1" in prepare()[1]
    entry = json.loads((tmp_path / "out" / "quarantine.jsonl").read_text())
    assert entry == {"file": str(corpus / "empty.txt"), "offset": 0, "reason": "empty_file"}


def test_unreadable_input(corpus, build_closed):
    (corpus / "00.txt").chmod(0)
    check(build_closed(), 2, "00.txt cannot be read")


def test_tokenizer_broken(prepare, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    check(prepare(tokenizer=tmp_path / "tokenizer.json"), 2, "is not JSON")


@pytest.mark.parametrize(
    ("option", "value", "messages"),
    [
        ("input", "/no/such/file.txt", ["/no/such/file.txt does not exist"]),
        ("tokenizer", "/no/tok", ["tokenizer /no/tok does not exist; train one"]),
        ("source", "pdf", ["source 'pdf' does not exist", "jsonl"]),
        ("segmenter", "best", ["segmenter 'best' does not exist", "fast"]),
        ("encoding", "klingon", ["--encoding 'klingon' is not known; auto, or as cp1252"]),
        ("encoding", "base64", ["--encoding 'base64' is not known"]),
        ("max_sentence_tokens", 1, ["--max-sentence-tokens 1: at least 2"]),
        ("validation_fraction", 1.5, ["--validation-fraction 1.5"]),
        ("shard_tokens", 0, ["--shard-tokens 0"]),
        ("workers", 0, ["--workers 0: at least 1"]),
    ],
)
def test_values_that_cannot_be(prepare, option, value, messages):
    check(prepare(**{option: value}), 2, *messages)


def test_value_that_is_not_a_number(prepare):
    code, _, error = prepare(shard_tokens="many")
    assert code == 2
    assert "'many' is not a number" in error


def test_output_of_other_arguments(prepare):
    assert prepare()[0] == 0
    assert prepare()[0] == 0
    message = "was built with max-sentence-tokens 256, not 100"
    check(prepare(max_sentence_tokens=100), 2, message, "choose another output")


def test_output_of_another_corpus(prepare, corpus):
    assert prepare()[0] == 0
    (corpus / "new.txt").write_text("More text.")
    check(
        prepare(),
        2,
        "was built from other input: ",
        "new.txt was not in it; choose another output",
    )


def test_output_of_another_tokenizer(prepare, wordpiece_path):
    assert prepare()[0] == 0
    said = "was built with another tokenizer, byte_bpe with "
    check(prepare(tokenizer=wordpiece_path), 2, said, "out/tokenizer); choose another output")


def test_output_that_is_no_dataset(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    check(prepare(), 2, "is not empty (thesis.tex)")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "precious"


def test_output_below_a_file(prepare, corpus):
    check(prepare(output=corpus / "00.txt" / "out"), 2, "cannot be made")


def test_bad_json_lines(prepare, tmp_path):
    good = json.dumps({"text": "A good line."})
    lines = [good, "{bad", "[1]", '{"other": 1}', '{"text": 5}', "", '{"text": " "}', good]
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    code, out, error = prepare(source="jsonl", input=tmp_path / "bad.jsonl")
    assert code == 0, error
    assert "  documents: 2" in out
    quarantine = (tmp_path / "out" / "quarantine.jsonl").read_text()
    entries = [json.loads(x) for x in quarantine.splitlines()]
    offsets = {e["reason"]: e["offset"] for e in entries}
    assert offsets == {
        "bad_json": 25, "not_a_json_object": 30, "missing_text_field": 34,
        "text_field_is_not_a_string": 47, "empty_document": 60,
    }  # fmt: skip
    assert all(e["file"].endswith("bad.jsonl") for e in entries)


def test_all_lines_bad(prepare, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n{}\n")
    result = prepare(source="jsonl", input=tmp_path / "bad.jsonl")
    check(result, 3, "no document that can be used", "missing_text_field 2", "bad.jsonl at 0")
    assert not (tmp_path / "out").exists()  # the right input may follow
    (tmp_path / "array.json").write_text('[\n{"text":\n"One."}\n]\n')
    result = prepare(source="jsonl", input=tmp_path / "array.json")
    check(result, 3, "an array, not an object a line", "jq -c")


def test_bad_utf8(prepare, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    path = tmp_path / "latin.txt"
    found = prepare(input=path, output=tmp_path / "auto")
    assert "files_decoded/" in found[1]
    utf8 = ("--encoding", "utf-8")
    replaced = prepare(*utf8, input=path, output=tmp_path / "a")
    assert "bad_utf8_replaced: 1" in replaced[1]
    stopped = prepare(*utf8, input=path, output=tmp_path / "b", on_bad_utf8="fail")
    check(stopped, 3, "latin.txt", "not valid UTF-8", "replace | skip")
    ascii_ = ("--encoding", "ascii")
    stopped = prepare(*ascii_, input=path, output=tmp_path / "b", on_bad_utf8="fail")
    check(stopped, 3, "latin.txt", "not valid ASCII", "replace | skip")
    skipped = prepare(*utf8, input=path, output=tmp_path / "c", on_bad_utf8="skip")
    check(skipped, 3, "bad_utf8 1")


def test_a_file_that_is_many_documents(prepare, corpus, monkeypatch):
    """One large file is one document, and one worker's: what was probably meant is said."""
    monkeypatch.setattr("data_prep.sources.long_documents.MAX_DOCUMENT_BYTES", 300)
    code, out, error = prepare("--validation-fraction", "0", input=corpus / "02.txt")
    assert code == 0
    assert "documents_cut_too_long: 1" in out
    message = "warning: a file was too long for one document and cut; try --split-blank-lines\n"
    assert error == message


def test_no_held_out_document_is_told_with_the_cure(prepare, corpus):
    code, out, error = prepare("--validation-fraction", "0.0001", input=corpus / "02.txt")
    assert (code, "validation: 0 documents" in out) == (0, True)
    cure = "--split-blank-lines (a document a paragraph) or another --validation-fraction"
    assert error == f"warning: no document fell into validation; try {cure}\n"


def test_utf16(prepare, tmp_path, corpus):
    (corpus / "wide.txt").write_text("Sixteen bits", encoding="utf-16")
    assert "files_decoded/utf-16: 1" in prepare()[1]


def test_commands_on_something_else(run, tmp_path):
    for command in ("verify", "inspect"):
        check(run(command, tmp_path / "no"), 2, "no does not exist; run python -m data_prep build")
    check(run("inspect", tmp_path), 3, "has no manifest.json")
    (tmp_path / "manifest.json").write_text('{"format_version": 99}')
    check(run("verify", tmp_path), 3, "format version 99", "reads 1")
    (tmp_path / "manifest.json").write_text("{}x")
    check(run("verify", tmp_path), 3, "cannot be read")


@pytest.mark.parametrize("command", ["build", "tokenizer", "verify", "inspect", "sources"])
def test_help_has_an_example(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"python -m data_prep {command}" in out
    assert "exit codes" in out


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "import runpy\n"
        "try: runpy.run_module('data_prep', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'numba', 'tokenizers', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_sources_lists_all(run):
    code, out, _ = run("sources")
    assert code == 0
    assert out.startswith(("jsonl", "hf"))
    assert "text " in out
