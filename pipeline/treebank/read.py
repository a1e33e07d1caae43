"""Readers of bracketed trees: Penn Treebank files, a labelled tree a line, unlabelled ones.

Lines between trees that begin with #, %, ; or the Penn Treebank's *x* are comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.errors import DataError
from pipeline.treebank.tree import Constituent, GoldTree, unescape

_TOKEN = re.compile(r"[()]|[^\s()]+")
SUFFIXES = (".mrg", ".ptb")
"""Of the files in a treebank's folder."""
_COMMENT = re.compile(r"\s*([#%;]|\*x\*)")
_OUTER = ("", "TOP", "ROOT", "S1", "VROOT")
"""Labels of an outer bracket that is not a constituent."""


class TreebankError(DataError):
    """A treebank's file cannot be read; the message names the file, the line and the mistake."""


def read_trees(path: str | Path) -> list[GoldTree]:
    """All trees of a file, or of those below a folder (SUFFIXES), in the order of their names.

    A tree may take several lines. Traces, function tags and outer brackets are left
    out; punctuation stays (`GoldTree.without_punctuation`).

    Raises:
        TreebankError: no file, or a line that is not a tree.
    """
    path = Path(path)
    files = tree_files(path)
    if not files:
        raise TreebankError(f"trees {path}: the folder holds no {' or '.join(SUFFIXES)} files")
    trees = []
    for file in files:
        for line, tokens in _bracketings(_read(file), str(file)):
            place = f"{file}:{line}"
            tree = parse_brackets(tokens, place).without_traces().without_functions()
            if not tree.words:
                raise TreebankError(f"{place}: the tree has no words but empty elements")
            trees.append(_without_outer(tree))
    if not trees:
        raise TreebankError(f"trees {path}: holds no trees")
    return trees


def tree_files(path: Path) -> list[Path]:
    """The files that are read: the path itself, or those below a folder."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)


def read_unlabelled(path: str | Path) -> list[GoldTree]:
    """The trees of a file with an unlabelled bracketing, "((the dog) barks)", a line.

    Raises:
        TreebankError: a line is not a balanced bracketing, or the file is empty.
    """
    trees = []
    for number, line in enumerate(_read(Path(path)).split("\n"), 1):
        # A word that is a tree by itself may look like the start of a comment.
        comment = _COMMENT.match(line) and len(line.split()) > 1
        if line.strip() and not comment:
            trees.append(_unlabelled(_TOKEN.findall(line), f"{path}:{number}"))
    if not trees:
        raise TreebankError(f"trees {path}: holds no trees")
    return trees


def parse_brackets(text: str | Sequence[str], place: str = "tree") -> GoldTree:
    """The tree that a labelled bracketing describes, with traces and function tags.

    Args:
        text: the bracketing, or its tokens.
        place: names it in error messages.
    Raises:
        TreebankError: it is not one tree whose words stand alone under a tag.
    """
    tokens = _TOKEN.findall(text) if isinstance(text, str) else text
    builder = _Builder(place)
    at = 0
    while at < len(tokens):
        at += builder.take(tokens[at : at + 4])
    return builder.tree()


class _Builder:
    """Puts a tree together from left to right."""

    def __init__(self, place: str):
        self._place = place
        self._words: list[str] = []
        self._tags: list[str] = []
        self._opened: list[int] = []
        """Positions in _constituents of those that are not closed yet."""
        self._constituents: list[Constituent] = []

    def take(self, tokens: Sequence[str]) -> int:
        """Reads the next element from up to four tokens; returns how many it read."""
        first = tokens[0]
        if first == ")":
            self._close()
            return 1
        if first != "(":
            raise self._error(f"the word {first!r} has no tag; words stand as (TAG word)")
        label = tokens[1] if len(tokens) > 1 and tokens[1] not in "()" else None
        if label is not None and len(tokens) > 2 and tokens[2] not in "()":
            if tokens[3:] != [")"]:
                raise self._error(
                    f"{tokens[2]!r} is not alone under {label!r}; words stand as (TAG word)"
                )
            self._words.append(unescape(tokens[2]))
            self._tags.append(label)
            return 4
        if label is None and self._words:  # around all it would be a treebank's
            raise self._error(
                "a bracket without a label inside the tree; what `parse --format bracket` writes"
                " has no labels and is no treebank (`parse --format ptb` writes one)"
            )
        self._opened.append(len(self._constituents))
        self._constituents.append(Constituent(len(self._words), -1, label or ""))
        return 1 if label is None else 2

    def _close(self) -> None:
        if not self._opened:
            raise self._error("a closing bracket too many")
        position = self._opened.pop()
        constituent = self._constituents[position]
        if constituent.start == len(self._words):
            raise self._error(f"a bracket {constituent.label!r} without words")
        self._constituents[position] = replace(constituent, end=len(self._words) - 1)

    def tree(self) -> GoldTree:
        """The tree, after the last token."""
        if self._opened:
            raise self._error("a bracket is never closed")
        return GoldTree(tuple(self._words), tuple(self._tags), tuple(self._constituents))

    def _error(self, what: str) -> TreebankError:
        return TreebankError(f"{self._place}: {what}")


def _unlabelled(tokens: Sequence[str], place: str) -> GoldTree:
    words: list[str] = []
    opened: list[int] = []
    constituents: list[Constituent] = []
    for number, token in enumerate(tokens):
        if opened == [] and number > 0:
            raise TreebankError(f"{place}: more than one tree on the line")
        if token == "(":
            opened.append(len(words))
        elif token == ")":
            if not opened:
                raise TreebankError(f"{place}: a closing bracket too many")
            start = opened.pop()
            if start == len(words):
                raise TreebankError(f"{place}: brackets without words")
            constituents.append(Constituent(start, len(words) - 1, ""))
        else:
            words.append(unescape(token))
    if opened:
        raise TreebankError(f"{place}: a bracket is never closed")
    constituents.sort(key=lambda c: (c.start, -c.end))
    return GoldTree(tuple(words), ("",) * len(words), tuple(constituents))


def _bracketings(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """(line, tokens) of each balanced bracketing of a file."""
    depth, tokens, first = 0, [], 1
    for number, line in enumerate(text.split("\n"), 1):
        if depth == 0 and _COMMENT.match(line):
            continue
        for token in _TOKEN.findall(line):
            if depth == 0:
                if token != "(":
                    raise TreebankError(f"{name}:{number}: {token!r} stands outside of any tree")
                first = number
            tokens.append(token)
            depth += (token == "(") - (token == ")")
            if depth == 0:
                yield first, tokens
                tokens = []
    if depth:
        raise TreebankError(f"{name}:{first}: a bracket is never closed")


def _without_outer(tree: GoldTree) -> GoldTree:
    """Without brackets around everything that have no label or one like TOP."""
    constituents = list(tree.constituents)
    whole = (0, len(tree.words) - 1)
    while constituents and constituents[0].span == whole and constituents[0].label in _OUTER:
        del constituents[0]
    return replace(tree, constituents=tuple(constituents))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise TreebankError(f"trees {path}: is not UTF-8 text") from None
    except OSError as error:
        raise TreebankError(f"trees {path}: cannot be read ({error.strerror})") from None
