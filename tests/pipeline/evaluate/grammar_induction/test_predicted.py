"""Grammar induction of trees that come from a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpst.api import ParsedSentence
from gpst.render import as_text
from gpst.tree import Tree
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.grammar_induction.options import Options
from pipeline.evaluate.grammar_induction.predicted import predicted_spans
from pipeline.treebank import parse_brackets
from tests.pipeline.evaluate.grammar_induction.test_command import TREES, command


@pytest.fixture
def options() -> Options:
    return Options(trees="trees.txt")


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    file = tmp_path / "trees.txt"
    file.write_text(TREES)
    return file


def test_trees_of_another_parser_are_scored(trees: Path, tmp_path: Path) -> None:
    file, output = tmp_path / "theirs.txt", tmp_path / "out"
    file.write_text("((the dog) (saw (a (big cat))))\n(the dog)\nah\n((it ran) (to us))\n")

    assert command("--trees", str(trees), "--predictions", str(file), "--output", str(output)) == 0

    results = json.loads((output / "results.json").read_text())
    # (0,1) (2,5) (3,5) of four: 6/7; 1; (2,3) of two: 1/2.
    f1 = results["scores"]["predictions"]["sentence_f1"]
    assert f1 == pytest.approx(100 * (6 / 7 + 1 + 1 / 2) / 3)

    file.write_text("(the dog)\n(the dog)\nah\n((it ran) (to us))\n")
    with pytest.raises(DataError, match="tree 1 has 2 words, the gold tree 6"):
        command("--trees", str(trees), "--predictions", str(file), "--output", str(output))
    file.write_text("(the dog)\n")
    with pytest.raises(DataError, match="1 trees, but there are 4 sentences"):
        command("--trees", str(trees), "--predictions", str(file), "--output", str(output))


SPLITS = ("((the dog) (saw (a (big cat))))", "(the dog)", "ah", "((it ran) (to us))")


def in_json(brackets: str) -> str:
    tree, words = Tree.from_brackets(brackets)
    return as_text(ParsedSentence(words, tree, -1.0), "json", 1)


def in_ptb(brackets: str) -> str:
    tree, words = Tree.from_brackets(brackets)
    return as_text(ParsedSentence(words, tree, -1.0), "ptb")


@pytest.mark.parametrize(
    "lines",
    [
        [in_json(line) + "\n" for line in SPLITS],
        [in_ptb(line) + "\n" for line in SPLITS],
        # Another parser's, with the punctuation; a tree takes several lines.
        [
            "% mine\n",
            "(X (X (DT The) (NN dog))\n  (X (VBD saw) (X (DT a) (X (JJ big) (NN cat)))) (. .))\n",
            *(in_ptb(line) + "\n" for line in SPLITS[1:]),
            "(X (: --))\n",
        ],
    ],
    ids=["json", "ptb", "treebank"],
)
def test_trees_are_scored_in_any_form_that_is_written(trees, tmp_path, lines):
    file, output = tmp_path / "theirs", tmp_path / "out"
    file.write_text("".join(lines))
    given = ("--trees", str(trees), "--predictions", str(file), "--output", str(output))
    assert command(*given) == 0
    scores = json.loads((output / "results.json").read_text())["scores"]
    assert scores["predictions"]["sentence_f1"] == pytest.approx(100 * (6 / 7 + 1 + 1 / 2) / 3)
    file.write_text("".join(lines[:-1]))
    assert command(*given[:-2], "--max-sentences", "2", "--output", str(tmp_path / "two")) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(X (W the) (W dog))\n" * 4, "tree 1 has 2 words, the gold tree 6"),
        (in_json("(the dog)") + "\n", "1 trees, but there are 4 sentences"),
        ('{"words": ["a"]}\n', ":1: is not as `parse --format json` writes it"),
        ('{"brackets": "(a b"}\n', ":1: is not as"),
        ("{", ":1: is not as"),
        (
            "(the dog)\n\nah\n(a b)\n",
            "3 trees, but there are 4 sentences; line 2 of the file is empty",
        ),
        ("", "holds no trees"),
        ("(the dog\n", "never closed"),
    ],
)
def test_unfit_predicted_trees_are_told_in_their_own_form(trees, tmp_path, text, problem):
    (tmp_path / "theirs").write_text(text)
    given = ("--trees", str(trees), "--predictions", str(tmp_path / "theirs"))
    with pytest.raises(DataError, match=re.escape(problem)):
        command(*given, "--output", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("predicted", "spans"),
    [
        # A word that was cut, and is a constituent, or is not.
        ("(((Mr .) Dorrit) (can n’t))", [(0, 1), (0, 2)]),
        ("((Mr (. Dorrit)) (can n’t))", [(0, 1), (0, 2)]),
        ("(Mr (. (Dorrit (can n’t))))", [(0, 2), (1, 2)]),
        # Two words as one.
        ("((MR. Dorritcan) n’t)", [(0, 2)]),
    ],
)
def test_words_that_a_tokenizer_cuts_are_put_together(tmp_path, predicted, spans, options):
    gold = [parse_brackets("(S (NP (NN mr.) (NN dorrit)) (VP (VB cann’t)))")]
    (tmp_path / "theirs").write_text(predicted + "\n")
    [found] = predicted_spans(str(tmp_path / "theirs"), gold, options)
    assert sorted(found) == spans


def test_other_words_are_told_and_other_sentences_refused(trees, tmp_path, options, capsys):
    file = tmp_path / "theirs"
    given = ("--trees", str(trees), "--predictions", str(file), "--output", str(tmp_path / "out"))
    file.write_text("((the <unk>) (saw (a (big cat))))\n(the dog)\nah\n((it ran) (to us))\n")
    assert command(*given) == 0
    said = f"warning: 1 of 13 words of {file} are not the gold trees' (in tree 1 '<unk>' stands for"
    assert said in capsys.readouterr().err
    file.write_text("((foo foo) (foo (foo (foo foo))))\n(foo foo)\nah\n((it ran) (to us))\n")
    with pytest.raises(DataError, match="of other sentences: 8 of 13 words are not"):
        command(*given)


def test_a_mark_of_unicode_is_no_json(trees, tmp_path):
    text = "".join(in_json(line) + "\n" for line in SPLITS)
    (tmp_path / "theirs").write_text(text, encoding="utf-8-sig")
    given = ("--trees", str(trees), "--predictions", str(tmp_path / "theirs"))
    assert command(*given, "--output", str(tmp_path / "out")) == 0


def test_options_that_would_be_ignored_are_refused(trees):
    with pytest.raises(ConfigError, match="--select-on chooses among models: give several with"):
        command("--trees", str(trees), "--select-on", str(trees))
    with pytest.raises(ConfigError, match="max_sentences"):
        command("--trees", str(trees), "--max-sentences", "-3")
