"""The command that trains a vocabulary: what it makes, what it finds there, what it refuses."""

from __future__ import annotations

import json
import os

import pytest
from one_line import check


@pytest.fixture
def train(run, tmp_path, corpus):
    """Run ``tokenizer`` into tmp_path / "tok", with 300 tokens unless told otherwise."""

    def run_tokenizer(*more, output="tok", vocab_size=300):
        return run(
            "tokenizer", "--source", "text", "--input", corpus, "--output", tmp_path / output,
            "--vocab-size", vocab_size, *more,
        )  # fmt: skip

    return run_tokenizer


def contents(folder):
    """Name -> bytes of its files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tokenizer_command(train, tmp_path):
    code, out, error = train()
    assert (code, error) == (0, "")
    assert "byte_bpe, 300 tokens" in out
    before = contents(tmp_path / "tok")
    assert json.loads(before["tokenizer_config.json"])["eos_token"] == "<|endoftext|>"
    done = f"{tmp_path / 'tok'}: complete already: byte_bpe, 300 tokens\n"
    assert train() == (0, done, "")
    assert contents(tmp_path / "tok") == before
    assert train("--kind", "wordpiece", output="wp", vocab_size=100)[0] == 0
    check(train(output="x", vocab_size=10), 2, "too small for bpe")


def test_a_tokenizer_of_something_else_is_not_taken_for_this_one(train, tmp_path, corpus):
    assert train()[0] == 0
    check(train(vocab_size=301), 2, "tok was built with vocab-size 300, not 301")
    check(train("--kind", "wordpiece"), 2, "with kind 'bpe', not 'wordpiece'")
    check(train("--cased"), 2, "with cased False, not True")
    check(train("--sample-mib", "3"), 2, "sample-mib")
    check(train("--split-blank-lines"), 2, "with split-blank-lines False")
    (corpus / "more.txt").write_text("One more text.")
    check(train(), 2, "was built from other input", "more.txt was not in it")
    (corpus / "more.txt").unlink()
    (tmp_path / "tok" / "trained_from.json").write_text("{}x")
    check(train(), 2, "holds a tokenizer already", "no readable trained_from.json")
    (tmp_path / "tok" / "trained_from.json").unlink()  # it came from elsewhere
    check(train(), 2, "holds a tokenizer already")


def test_a_tokenizer_of_text_edited_to_the_same_size_is_not_taken_for_this_one(train, corpus):
    assert train()[0] == 0
    file = next(corpus.rglob("*.txt"))
    facts, text = file.stat(), file.read_bytes()
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + 10**9))
    check(train(), 2, f"{file} was modified at", "--input-changed accept")
    assert train("--input-changed", "accept")[0] == 0
    assert train()[0] == 0
    file.write_bytes(text[::-1])
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    check(train(), 2, f"{file} has other contents of the same {len(text)} bytes")


@pytest.mark.parametrize("last", ["trained_from.json", "tokenizer.json"])
def test_a_tokenizer_killed_while_written_is_trained_again(train, tmp_path, last):
    assert train()[0] == 0
    whole = contents(tmp_path / "tok")
    (tmp_path / "tok" / "tokenizer_config.json").unlink()
    if last == "trained_from.json":
        (tmp_path / "tok" / "tokenizer.json").unlink()
    code, out, _ = train()
    assert code == 0
    assert "complete already" not in out
    assert contents(tmp_path / "tok") == whole
