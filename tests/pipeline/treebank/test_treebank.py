"""Readers and conversions of treebanks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpst.api import ParsedSentence
from gpst.render import as_text
from gpst.tree import Tree
from pipeline.treebank import GoldTree, TreebankError, parse_brackets, read_trees, read_unlabelled
from pipeline.treebank.__main__ import main

MRG = """

( (S
    (NP-SBJ-1 (NNP Mr.) (NNP Vinken) )
    (VP (VBZ is)
      (VP (VBN expected)
        (S
          (NP-SBJ (-NONE- *-1) )
          (VP (TO to)
            (VP (VB pay)
              (NP=2 (QP (# #) (CD 3) (CD million)) (-NONE- *U*))
              (PP-TMP (IN on)
                (NP (NNP May\\/June) ))))))
      (, ,)
      (PRN (-LRB- -LRB-) (ADVP|PRT (RB up) ) (-RRB- -RRB-)))
    (. .) ))
( (FRAG (NP-TTL (DT No) ) (: --) ))
( (S (NP-SBJ (-NONE- *)) (VP (VB Stop)) ))
"""
WHOLE = (
    "(S (NP (NNP Mr.) (NNP Vinken)) (VP (VBZ is) (VP (VBN expected) (S (VP (TO to) (VP (VB pay) "
    "(NP (QP (# #) (CD 3) (CD million))) (PP (IN on) (NP (NNP May/June))))))) (, ,) "
    "(PRN (-LRB- -LRB-) (ADVP (RB up)) (-RRB- -RRB-))) (. .))"
)
CLEAN = (
    "(S (NP (NNP mr.) (NNP vinken)) (VP (VBZ is) (VP (VBN expected) (S (VP (TO to) (VP (VB pay) "
    "(NP (QP (CD 3) (CD million))) (PP (IN on) (NP (NNP may/june))))))) (PRN (ADVP (RB up)))))"
)


@pytest.fixture
def wsj(tmp_path: Path) -> Path:
    """A folder as the Penn Treebank has it."""
    (tmp_path / "23").mkdir()
    (tmp_path / "23" / "wsj_2301.mrg").write_text(MRG)
    (tmp_path / "23" / "wsj_2300.mrg").write_text("( (X (NN first) ))\n")
    (tmp_path / "23" / "readme").write_text("no trees\n")
    return tmp_path


def test_penn_treebank_files_lose_traces_functions_and_outer_brackets(wsj: Path) -> None:
    trees = read_trees(wsj)

    assert [tree.one_line() for tree in trees] == [
        "(X (NN first))",
        WHOLE,
        "(FRAG (NP (DT No)) (: --))",
        "(S (VP (VB Stop)))",
    ]
    assert trees[1].words[-5:] == (",", "(", "up", ")", ".")


def test_punctuation_and_currency_go_by_tag_and_words_become_lower_case(wsj: Path) -> None:
    trees = [tree.without_punctuation().lower() for tree in read_trees(wsj)]

    assert trees[1].one_line() == CLEAN
    assert trees[2].one_line() == "(FRAG (NP (DT no)))"
    # A word that looks like punctuation stays when its tag says that it is a word.
    assert parse_brackets("(X (NN ,) (, so))").without_punctuation().words == (",",)


def test_a_tree_a_line_is_written_as_it_was_read(tmp_path: Path) -> None:
    file = tmp_path / "trees.txt"
    file.write_text(f"{WHOLE}\n\n{CLEAN}\n")

    assert [tree.one_line() for tree in read_trees(file)] == [WHOLE, CLEAN]


def test_outer_brackets_with_a_label_go_and_constituents_with_the_same_span_stay() -> None:
    tree = parse_brackets("(S (S (NN a) (NN b)))")

    assert [c.label for c in tree.constituents] == ["S", "S"]
    assert tree.spans() == set()


def test_unlabelled_brackets_leave_out_unary_nodes_and_read_back(tmp_path: Path) -> None:
    tree = parse_brackets(CLEAN)
    text = tree.unlabelled()
    file = tmp_path / "trees.txt"
    file.write_text(f"{text}\n(a (b c))\nalone\n")

    again = read_unlabelled(file)

    assert text == "((mr. vinken) (is (expected (to (pay (3 million) (on may/june)))) up))"
    assert again[0].spans() == tree.spans()
    assert again[0].words == tree.words
    assert again[1].spans() == {(1, 2)}
    assert again[2].words == ("alone",)


def test_spans_that_count_are_longer_than_a_word_and_shorter_than_the_sentence() -> None:
    tree = parse_brackets("(S (NP (DT the) (NN dog)) (VP (VP (VBD saw) (NP (NN it)))))")

    assert tree.spans() == {(0, 1), (2, 3)}
    assert tree.labelled_spans() == {((0, 1), "NP"), ((2, 3), "VP")}


def test_random_trees_survive_all_conversions(tmp_path: Path) -> None:
    source = random.Random(0)

    def grow(words: int) -> str:
        if words == 1:
            return f"(T{source.randrange(3)} {source.choice(['a', '-LRB-', 'it', 'x'])})"
        cuts = sorted(source.sample(range(1, words), source.randint(0, min(3, words - 1))))
        parts = [b - a for a, b in zip([0, *cuts], [*cuts, words], strict=True)]
        if len(parts) == 1 and source.random() < 0.5:
            return f"(U {grow(words)})"
        return f"(N{source.randrange(4)} {' '.join(grow(p) for p in parts)})"

    texts = [f"(S {grow(source.randint(1, 12))})" for _ in range(50)]
    labelled, unlabelled = tmp_path / "labelled.txt", tmp_path / "unlabelled.txt"
    labelled.write_text("\n".join(texts))
    trees = read_trees(labelled)
    unlabelled.write_text("\n".join(tree.unlabelled() for tree in trees))

    assert [tree.one_line() for tree in trees] == texts
    again = read_unlabelled(unlabelled)
    assert [tree.spans() for tree in again] == [tree.spans() for tree in trees]
    assert [tree.words for tree in again] == [tree.words for tree in trees]


def test_command_converts(wsj: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(wsj), "--to", "words", "--no-punctuation", "--lower"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "first",
        "mr. vinken is expected to pay 3 million on may/june up",
        "no",
        "stop",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a)\n\n", r"trees\.txt:1: a bracket is never closed"),
        ("(S (NN a))\n(S (NN a)))", r"trees\.txt:2: '\)' stands outside of any tree"),
        ("(S (NN a b))", r"trees\.txt:1: 'a' is not alone under 'NN'"),
        ("(S (NN a) b)", r"trees\.txt:1: the word 'b' has no tag"),
        ("(S (NP) (NN a))", r"trees\.txt:1: a bracket 'NP' without words"),
        ("((The dog) ((saw (a cat)) .))", r"trees\.txt:1: a bracket without a label"),
        ("(S (-NONE- *))", r"trees\.txt:1: the tree has no words but empty elements"),
        ("word", r"trees\.txt:1: 'word' stands outside of any tree"),
        ("\n", r"trees .*trees\.txt: holds no trees"),
    ],
)
def test_what_is_no_tree_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "trees.txt"
    file.write_text(text)

    with pytest.raises(TreebankError, match=message):
        read_trees(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(a b) (c d)", "1: more than one tree on the line"),
        ("(a (b c)", "1: a bracket is never closed"),
        ("(a ())", "1: brackets without words"),
        ("", "holds no trees"),
        (") a", "1: a closing bracket too many"),
    ],
)
def test_what_is_no_unlabelled_tree_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "trees.txt"
    file.write_text(text)

    with pytest.raises(TreebankError, match=message):
        read_unlabelled(file)


def test_missing_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TreebankError, match=r"cannot be read \(No such file"):
        read_trees(tmp_path / "none.txt")
    with pytest.raises(TreebankError, match=r"holds no \.mrg or \.ptb files"):
        read_trees(tmp_path)
    (tmp_path / "bytes.txt").write_bytes(b"(S (NN \xff))")
    with pytest.raises(TreebankError, match="is not UTF-8 text"):
        read_trees(tmp_path / "bytes.txt")

    assert main([str(tmp_path / "none.txt")]) == 3
    assert capsys.readouterr().err.startswith("treebank: trees ")


def test_a_tree_without_words_left_has_no_spans() -> None:
    empty = parse_brackets("(S (. .))").without_punctuation()

    assert empty == GoldTree((), (), ())
    assert empty.spans() == set()


def test_comments_and_byte_order_marks_are_no_trees(tmp_path: Path) -> None:
    comments = "\ufeff*x*x*x*\n*x* Copyright (C) 1995 *x*\n# text = a ( b\n"
    (tmp_path / "a.ptb").write_text(f"{comments}(S (# #)\n  (NN b))\n% end\n", encoding="utf-8")
    (tmp_path / "b.MRG").write_text("( (X (NN c)) )\n; (no tree\n")
    assert [tree.words for tree in read_trees(tmp_path)] == [("#", "b"), ("c",)]
    plain = tmp_path / "plain.txt"
    plain.write_text("\ufeff# newdoc (1)\n(a b)\n#\n", encoding="utf-8")
    assert [tree.words for tree in read_unlabelled(plain)] == [("a", "b"), ("#",)]


def test_what_the_parser_writes_is_read(tmp_path: Path) -> None:
    words = ["f(x)", "[", "-", "{}", "#"]
    parsed = ParsedSentence(words, Tree.from_actions([0, 0, 1, 0, 0, 1, 0, 1, 1]))
    file = tmp_path / "trees.txt"
    file.write_text(as_text(parsed, "bracket") + "\n")
    [unlabelled] = read_unlabelled(file)
    file.write_text(as_text(parsed, "ptb") + "\n")
    [labelled] = read_trees(file)
    for tree in (unlabelled, labelled):
        assert list(tree.words) == words
        assert tree.unlabelled() == str(parsed)
    file.write_text(unlabelled.unlabelled() + "\n")
    assert read_unlabelled(file) == [unlabelled]
