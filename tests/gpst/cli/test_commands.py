"""The commands as a user calls them."""

import io
import json
import shutil
import sys
from itertools import pairwise

import pytest

from gpst.cli.commands import main
from gpst.export.huggingface import open_model


def run(capsys, *argv):
    code = main([str(a) for a in argv])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("method", ["inside", "left-to-right"])
def test_parse_reads_a_file_or_standard_input(exported, tmp_path, capsys, monkeypatch, method):
    text = "The old man sailed.\n\n  She saw the boats!\n"
    (tmp_path / "in.txt").write_text(text)
    arguments = ("--model", exported, "--method", method, "--beam", 3, "--format")
    code, out, err = run(capsys, "parse", *arguments, "bracket", tmp_path / "in.txt")
    assert (code, err) == (0, "")
    assert out.splitlines()[1] == ""  # as the input
    assert len(out.splitlines()) == 3
    assert out.splitlines()[0].replace("(", "").replace(")", "") == "The old man sailed ."
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert run(capsys, "parse", *arguments, "bracket")[1] == out
    code, out, _ = run(capsys, "parse", *arguments, "json", tmp_path / "in.txt")
    values = [json.loads(line) for line in out.splitlines()]
    assert [(one["sentence"], one["words"][-1]) for one in values] == [(1, "."), (3, "!")]
    code, out, _ = run(capsys, "parse", *arguments, "ascii", tmp_path / "in.txt")
    assert out.count("\n\n") == 1
    code, out, _ = run(capsys, "parse", *arguments, "svg", tmp_path / "in.txt")
    assert out.count("<text") == 10


def test_a_line_of_another_encoding_is_named(exported, monkeypatch, capsys):
    """Python reads standard input like this where the locale is C or POSIX."""
    given = io.BytesIO(b"Caf\xe9.\nThe old man sailed.\n")
    lines = io.TextIOWrapper(given, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", lines)
    code, out, err = run(capsys, "parse", "--model", exported, "--format", "bracket", "-")
    assert (code, err) == (3, "parse: line 1 is left out: it is not UTF-8 text\n")
    assert out.startswith("\n(")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_no_utf8_cost_their_line(exported, tmp_path, monkeypatch, capsys, errors):
    """The same of a file and of standard input, however far into it they stand."""
    good = b"They did!\n"
    data = good * 1000 + b"Caf\xe9.\n" + good
    (tmp_path / "latin.txt").write_bytes(data)
    fails = "line 1001"
    for path in (tmp_path / "latin.txt", "-"):
        stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=errors)
        monkeypatch.setattr("sys.stdin", stdin)
        common = ("parse", "--model", exported, "--format", "bracket")
        code, out, err = run(capsys, *common, path)
        assert (code, err) == (3, f"parse: {fails} is left out: it is not UTF-8 text\n")
        lines = out.splitlines()
        assert (len(lines), lines[1000], lines[1001]) == (1002, "", lines[0])
        stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=errors)
        monkeypatch.setattr("sys.stdin", stdin)
        code, out, err = run(capsys, *common, "--on-error", "stop", path)
        assert (code, err) == (3, f"parse: {fails}: it is not UTF-8 text\n")
        assert out.splitlines() == lines[:1000]


def test_what_is_unfit_is_named_and_the_rest_is_done(exported, tmp_path, capsys):
    lines = ["\ufeffThe old man sailed.", "", "boats " * 200, "They did!"]
    (tmp_path / "in.txt").write_text("\n".join(lines), encoding="utf-8")
    for command, numbers in (("parse", ("--format", "json")), ("surprisal", ())):
        code, out, err = run(capsys, command, "--model", exported, *numbers, tmp_path / "in.txt")
        assert code == 3
        assert err.startswith(f"{command}: line 3 is left out: a sentence has ")
        assert err.count("\n") == 1
        rows = out.splitlines()
        if command == "parse":
            values = [json.loads(row) for row in rows]
            found = [(one["sentence"], one["words"][0]) for one in values]
        else:
            table = [row.split("\t") for row in rows[1:]]
            found = [(int(row[0]), row[2]) for row in table if row[1] == "1"]
        assert found == [(1, "The"), (4, "They")]
        stopped = run(
            capsys, command, "--model", exported, "--on-error", "stop", tmp_path / "in.txt"
        )
        assert stopped[0] == 3
        assert stopped[2].startswith(f"{command}: line 3: a sentence has ")
    code, out, _ = run(
        capsys, "parse", "--model", exported, "--format", "bracket", tmp_path / "in.txt"
    )
    assert [bool(line) for line in out.splitlines()] == [True, False, False, True]


def test_surprisal_table(exported, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("The old man sailed.\nShe saw the boats!\n")
    code, out, _ = run(capsys, "surprisal", "--model", exported, tmp_path / "in.txt")
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert rows[0] == ["sentence", "position", "word", "surprisal_bits"]
    assert [row[:3] for row in rows[1:4]] == [
        ["1", "1", "The"],
        ["1", "2", "old"],
        ["1", "3", "man"],
    ]
    assert rows[6][:3] == ["2", "1", "She"]
    code, other, _ = run(
        capsys, "surprisal", "--model", exported, "--document", tmp_path / "in.txt"
    )
    # The first sentence has no context in either; the second one has in a document.
    assert other.splitlines()[:6] == out.splitlines()[:6]
    assert other.splitlines()[6:] != out.splitlines()[6:]


def test_generate_shows_text_and_trees(exported, capsys, monkeypatch):
    arguments = ("generate", "--model", exported, "--max-new-tokens", 5)
    code, out, err = run(capsys, *arguments, "--prompt", "The man", "--trees", "--seed", 3)
    assert (code, err) == (0, "")
    assert out.startswith("The man")
    assert "┬─" in out
    assert run(capsys, *arguments, "--prompt", "The man", "--trees", "--seed", 3)[1] == out
    # The k-th sample is that of the k-th seed.
    both = run(capsys, *arguments, "--prompt", "The man", "--samples", 2, "--seed", 2)[1]
    assert both.split("\n\n")[1] == out.split("\n\n")[0]
    code, out, _ = run(capsys, *arguments, "--search", "--samples", 2, "--beam", 4)
    assert code == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("The man"))
    assert run(capsys, *arguments, "--prompt", "-")[1].startswith("The man")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ((), 2, "command 'nothing': known are parse"),
        (("prase",), 2, "command 'prase'"),
        (("parse", "--model", "nowhere", "-"), 2, "model nowhere does not exist"),
        (("parse", "--model", "MODEL", "nofile.txt"), 2, "cannot read nofile.txt"),
        (("parse", "--model", "MODEL", "EMPTY"), 2, "holds no sentence"),
        (("parse", "--model", "MODEL", "BYTES"), 3, "is not UTF-8"),
        (("parse", "--model", "MODEL", "LONG"), 3, "line 1 is left out: a sentence has"),
        (("parse", "--model", "MODEL", "--on-error", "stop", "LONG"), 3, "line 1: a sentence has"),
        (("parse", "--model", "MODEL", "NUL"), 3, "is no text: line 1 holds a NUL character"),
        (("surprisal", "--model", "nowhere", "-"), 2, "model nowhere does not exist"),
        (("surprisal", "--model", "MODEL", "nofile.txt"), 2, "cannot read nofile.txt"),
        (("surprisal", "--model", "MODEL", "EMPTY"), 2, "holds no sentence"),
        (("surprisal", "--model", "MODEL", "BYTES"), 3, "is not UTF-8"),
        (("surprisal", "--model", "MODEL", "NUL"), 3, "is no text: line 1 holds a NUL character"),
        (("surprisal", "--model", "MODEL", "LONG"), 3, "but the model takes 128: 'boats boats"),
        (("surprisal", "--model", "MODEL", "--document", "LINES"), 3, "a text has"),
        (("generate", "--model", "MODEL", "--prompt", "a b. " * 100), 3, "the prompt has"),
    ],
)
def test_faults_are_one_line(exported, tmp_path, capsys, argv, code, message):
    files = {"EMPTY": b"\n", "BYTES": b"\xff\xfe a", "LONG": b"boats " * 200,
             "NUL": b"b\0c.\n", "LINES": b"The man.\n" * 100}  # fmt: skip
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    given = [
        str(exported) if a == "MODEL" else str(tmp_path / a) if a in files else a for a in argv
    ]
    found, out, err = run(capsys, *given)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["parse", "surprisal"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_unknown_words_are_read(exported, tmp_path, capsys, command, dtype):
    (tmp_path / "in.txt").write_text("Zzqx \U0001f600 \u6f22\u5b57 xyzzy.\n", encoding="utf-8")
    method = ("--method", "left-to-right", "--format", "json") if command == "parse" else ()
    given = ("--model", exported, "--beam", 3, "--dtype", dtype, *method, tmp_path / "in.txt")
    code, out, err = run(capsys, command, *given)
    assert (code, err) == (0, "")
    words = ["Zzqx", "\U0001f600", "\u6f22\u5b57", "xyzzy", "."]
    if command == "parse":
        assert json.loads(out)["words"] == words
    else:
        rows = [line.split("\t") for line in out.splitlines()[1:]]
        assert [row[2] for row in rows] == words
        assert all(float(row[3]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("parse", "--dtype", "fp8"), "--dtype: invalid choice: 'fp8'"),
        (("parse", "--beam", "0"), "'0' is not a whole number of at least 1"),
        (("parse", "--format", "tiff"), "--format: invalid choice: 'tiff'"),
        (("parse", "--method", "up"), "--method: invalid choice: 'up'"),
        (("parse", "--device", "banana"), "device: 'banana' is not here; it may be cpu"),
        (("parse", "--device", "cuda:99"), "device: 'cuda:99' is not here"),
        (("surprisal", "--beams", "3"), "unrecognized arguments: --beams"),
        (("generate", "--temperature", "-1"), "temperature: -1.0 is not allowed"),
        (("generate", "--top-p", "2"), "top_p: 2.0 is not allowed"),
    ],
)
def test_bad_options_are_one_line(exported, capsys, argv, message):
    with pytest.raises(SystemExit) as stopped:
        main([argv[0], "--model", str(exported), *argv[1:]])
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_a_prompt_of_another_encoding_is_named(exported, monkeypatch, capsys):
    given = io.TextIOWrapper(io.BytesIO(b"Caf\xe9"), encoding="utf-8", errors="strict")
    monkeypatch.setattr("sys.stdin", given)
    for prompt in ("-", "Caf\udce9"):
        code, out, err = run(capsys, "generate", "--model", exported, "--prompt", prompt)
        assert (code, out, err) == (3, "", "generate: the prompt is not UTF-8 text\n")


def test_what_ends_a_text_early_is_said(exported, capsys):
    limit = open_model(exported).config.max_context_tokens
    common = ("generate", "--model", exported, "--max-new-tokens")
    code, _, err = run(capsys, *common, 2 * limit, "--temperature", 0)
    said = f"generate: the text ends where the model's context does, at {limit} tokens\n"
    assert (code, err) == (0, said)
    assert run(capsys, *common, 3)[2] == ""
    code, _, err = run(capsys, *common, 3, "--search", "--beam", 1, "--samples", 5)
    said = "generate: --samples 5: the search has found 1; a larger --beam finds more\n"
    assert (code, err) == (0, said)


@pytest.mark.parametrize("command", ["parse", "generate", "surprisal"])
def test_a_missing_model_is_one_line_with_its_cure(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        main([command])
    assert stopped.value.code == 2
    _, err = capsys.readouterr()
    cure = "--model is missing: name a folder that launch/convert.sh to-hf has made (see --help)"
    assert err == f"{command}: {cure}\n"


@pytest.mark.parametrize("command", ["parse", "generate", "surprisal"])
def test_every_option_is_explained(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    options = text.partition("options:")[2].partition("example:")[0]
    for line in options.splitlines():
        # The explanation stands on the option's line or alone on the next one.
        if line.startswith("  -"):
            assert len(line.split("  ")) > 2 or line in _wrapped(options), line


def _wrapped(options: str) -> set[str]:
    lines = options.splitlines()
    return {a for a, b in pairwise(lines) if b.startswith(" " * 10)}


def test_damaged_weights_are_one_line(exported, tmp_path, capsys):
    folder = tmp_path / "broken"
    shutil.copytree(exported, folder)
    weights = (folder / "model.safetensors").read_bytes()
    for damaged in (weights[:1000], b"", weights[:100] + b"x" * 20 + weights[120:]):
        (folder / "model.safetensors").write_bytes(damaged)
        code, out, err = run(capsys, "parse", "--model", folder, "-")
        assert (code, out) == (2, "")
        assert "model.safetensors" in err
        assert err.count("\n") == 1
