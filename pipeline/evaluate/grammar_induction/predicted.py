"""Trees from a file, to be scored like a model's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpst.config_reader import ConfigError, parse_json
from gpst.tree import Tree
from pipeline.errors import DataError
from pipeline.evaluate.grammar_induction.f1 import Span
from pipeline.evaluate.grammar_induction.gold import gold_trees
from pipeline.evaluate.grammar_induction.options import Options
from pipeline.treebank import GoldTree, TreebankError, read_unlabelled

Words = Sequence[str]
Reading = list[tuple[Words, list[Span]]]
"""The words and spans of each tree."""


def predicted_spans(path: str, gold: Sequence[GoldTree], options: Options) -> list[list[Span]]:
    """The spans of a file's trees, which must be those of the gold trees' sentences.

    The file is as `parse` writes it (bracket, ptb, json), or a treebank. That brackets have labels
    shows in the numbers of words: (the dog) is two words, or one with its tag.

    Raises:
        DataError: it cannot be read, or its trees are over other sentences.
    """
    readers: list[Callable[[str, Options], Reading]] = [_unlabelled, _labelled]
    if _is_json(path):
        readers = [_json_lines]
    readings, errors = [], []
    for read in readers:
        try:
            readings.append(read(path, options))
        except DataError as error:
            errors.append(error)
    if not readings:
        raise errors[0]
    trees = max(readings, key=lambda trees: _num_fitting(trees, gold))
    _check(path, trees, gold)
    return [spans for _, spans in trees]


def _check(path: str, trees: Reading, gold: Sequence[GoldTree]) -> None:
    if len(trees) != len(gold):
        raise DataError(
            f"--predictions {path}: {len(trees)} trees, but there are {len(gold)} sentences"
        )
    for number, ((words, _), gold_tree) in enumerate(zip(trees, gold, strict=True), 1):
        if len(words) != len(gold_tree.words):
            raise DataError(
                f"--predictions {path}: tree {number} has {len(words)} words, the gold tree "
                f"{len(gold_tree.words)}; it must be over its words ({' '.join(gold_tree.words)})"
            )


def _num_fitting(trees: Reading, gold: Sequence[GoldTree]) -> int:
    pairs = zip(trees, gold, strict=False)
    return sum(len(words) == len(gold_tree.words) for (words, _), gold_tree in pairs)


def _unlabelled(path: str, options: Options) -> Reading:
    return _spans(read_unlabelled(path)[: options.max_sentences])


def _labelled(path: str, options: Options) -> Reading:
    """Cleaned as the gold trees are."""
    trees, _ = gold_trees(path, options.punctuation, options.lower, options.max_sentences)
    return _spans(trees)


def _spans(trees: Sequence[GoldTree]) -> Reading:
    return [(tree.words, [c.span for c in tree.constituents]) for tree in trees]


def _is_json(path: str) -> bool:
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as lines:
            return next(filter(str.strip, lines), "").lstrip().startswith("{")
    except OSError:  # a folder of a treebank, or the reader says it
        return False


def _json_lines(path: str, options: Options) -> Reading:
    trees: Reading = []
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        if line.strip():
            try:
                tree, words = Tree.from_brackets(parse_json(line.decode())["brackets"])
            except (ConfigError, ValueError, TypeError, KeyError, AttributeError):
                raise TreebankError(
                    f"--predictions {path}:{number}: is not as `parse --format json` writes it, "
                    'with the tree as "brackets"'
                ) from None
            trees.append((words, list(tree.internal_spans)))
    return trees[: options.max_sentences]
