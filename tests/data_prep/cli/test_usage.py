"""Values of options that used to end in a traceback; full disks of the smaller commands."""

from __future__ import annotations

import builtins
import errno
import shutil
import subprocess
import sys

import pytest

from data_prep import files
from data_prep.__main__ import main
from data_prep.errors import DatasetError
from data_prep.format import shard
from data_prep.format.shard import open_dataset, write_dataset


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


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_tokenizer_on_a_full_disk(prepare, tmp_path, monkeypatch):
    """Half a file would be refused by the next run as a tokenizer."""
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full_disk)
        code, _, error = prepare("tokenizer", "--vocab-size", "300")
    assert code == 3
    assert error.startswith("error: no space left for ")
    assert list((tmp_path / "out").iterdir()) == []
    assert prepare("tokenizer", "--vocab-size", "300")[0] == 0


@pytest.mark.parametrize("call", ["copyfile", "fsync"])
def test_merge_on_a_full_disk(tmp_path, run, monkeypatch, call):
    for name in ("a", "b"):
        write_dataset(tmp_path / name, [[[1]]], vocab_size=9)
    command = ("merge", tmp_path / "a", tmp_path / "b", "--output", tmp_path / "c", "--quiet")

    def half_a_copy(source, target):
        target.write_bytes(source.read_bytes()[:9])
        full_disk()

    with monkeypatch.context() as patch:
        if call == "copyfile":
            patch.setattr(shutil, "copyfile", half_a_copy)
        else:
            patch.setattr(files.os, "fsync", full_disk)
        code, _, error = run(*command)
    assert code == 3
    assert error.startswith("error: no space left for ")
    assert list((tmp_path / "c").iterdir()) == []
    assert run(*command)[0] == 0


def test_an_alphabet_larger_than_the_vocabulary(prepare, corpus):
    (corpus / "greek.txt").write_text(" ".join(chr(n) for n in range(0x391, 0x3C9)))
    code, out, error = prepare("tokenizer", "--kind", "wordpiece", "--vocab-size", "64")
    assert code == 0
    assert "wordpiece, " in out
    assert "the letters of the text alone give" in error
    assert "more than --vocab-size 64" in error


def test_a_shard_without_permission(tmp_path, monkeypatch):
    write_dataset(tmp_path / "a", [[[1]]], vocab_size=9)

    def closed(path, *more, **named):
        if str(path).endswith(".npy"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return builtins.open(path, *more, **named)

    monkeypatch.setattr(shard, "open", closed, raising=False)
    with pytest.raises(DatasetError, match=r"npy cannot be read: no permission; chmod it"):
        open_dataset(tmp_path / "a")


def test_an_interruption_while_modules_load_is_one_line(capsys, monkeypatch):
    """Whenever it comes: nothing of the package is loaded outside of main."""
    code = "import sys, data_prep.__main__; print(*[m for m in sys.modules if 'data_prep.' in m])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert loaded.stdout.split() == ["data_prep.__main__"]

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("data_prep.cli.arguments.make_parser", interrupted)
    assert main(["build"]) == 130
    assert capsys.readouterr().err == "error: interrupted; run the same command again to go on\n"
