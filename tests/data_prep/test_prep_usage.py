"""Values of options that used to end in a traceback; full disks of the smaller commands."""

from __future__ import annotations

import pytest


@pytest.fixture
def prepare(tmp_path, corpus, bpe_path, run):
    """Run ``build`` or ``tokenizer`` on the corpus with further options."""

    def run_command(command, *more):
        given = ("--tokenizer", bpe_path) if command == "build" else ()
        arguments = ("--source", "text", "--input", corpus, "--output", tmp_path / "out")
        return run(command, *arguments, *given, *more)

    return run_command


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("build", ("--dry-run", "--workers", "0"), "--workers 0: at least 1"),
        ("build", ("--dry-run", "--workers", "-1"), "--workers -1: at least 1"),
        ("build", ("--shard-tokens", "inf"), "--shard-tokens: 'inf' is not a number"),
        ("build", ("--max-sentence-tokens", "inf"), "--max-sentence-tokens: 'inf' is not a number"),
        ("build", ("--unit-mib", "nan"), "--unit-mib: 'nan' is not a finite number"),
        ("build", ("--unit-mib", "inf"), "--unit-mib: 'inf' is not a finite number"),
        ("tokenizer", ("--vocab-size", "inf"), "--vocab-size: 'inf' is not a number"),
        ("tokenizer", ("--sample-mib", "0"), "--sample-mib 0: at least 1"),
        ("tokenizer", ("--sample-mib", "-4"), "--sample-mib -4: at least 1"),
        ("tokenizer", ("--vocab-size", "1g", "--kind", "wordpiece"), "is too large: at most"),
    ],
)
def test_numbers_that_make_no_sense(prepare, tmp_path, command, arguments, message):
    code, out, error = prepare(command, *arguments)
    assert (code, out) == (2, "")
    assert message in error.splitlines()[-1]
    assert not (tmp_path / "out").exists()
