"""Trees from a file, to be scored like a model's."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from gpst.config_reader import ConfigError, parse_json
from gpst.tree import Tree
from pipeline.errors import DataError
from pipeline.evaluate.grammar_induction.f1 import Span
from pipeline.evaluate.grammar_induction.gold import gold_trees
from pipeline.evaluate.grammar_induction.options import Options
from pipeline.treebank import GoldTree, TreebankError, read_unlabelled

Words = Sequence[str]
Predicted = tuple[Words, list[Span]]
"""The words and spans of a tree."""
Reading = list[Predicted]


def predicted_spans(path: str, gold: Sequence[GoldTree], options: Options) -> list[list[Span]]:
    """The spans of a file's trees, which must be those of the gold trees' sentences.

    The file is as `parse` writes it (bracket, ptb, json), or a treebank. That brackets have labels
    shows in the words: (the dog) is two, or one with its tag. Words that a tokenizer has cut (Mr
    and .) are put together again; a span that cuts a gold word is no constituent of it.

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
    trees = min(readings, key=lambda trees: _num_unfit(trees, gold))
    if len(trees) != len(gold):
        raise DataError(
            f"--predictions {path}: {len(trees)} trees, but there are {len(gold)} sentences"
            + _empty_line(path)
        )
    _say_other_words(path, trees, gold)
    return [
        _over_gold_words(path, number, tree, gold_tree.words)
        for number, (tree, gold_tree) in enumerate(zip(trees, gold, strict=True), 1)
    ]


def _over_gold_words(path: str, number: int, tree: Predicted, gold: Words) -> list[Span]:
    """Spans by their places in the text; by their words where these are others, but as many."""
    words, spans = tree
    if _text(words) != _text(gold):
        if len(words) != len(gold):
            raise DataError(
                f"--predictions {path}: tree {number} has {len(words)} words, the gold tree "
                f"{len(gold)}; it must be over its words ({' '.join(gold)})"
            )
        return spans
    starts, ends = _edges(words)
    gold_starts, gold_ends = ({at: k for k, at in enumerate(edge)} for edge in _edges(gold))
    return [
        (gold_starts[starts[i]], gold_ends[ends[j]])
        for i, j in spans
        if starts[i] in gold_starts
        and ends[j] in gold_ends
        and gold_starts[starts[i]] < gold_ends[ends[j]]  # of two words and more
    ]


def _edges(words: Words) -> tuple[list[int], list[int]]:
    """Where each word starts and ends in the text without spaces."""
    ends = list(accumulate(len(word.casefold()) for word in words))
    return [0, *ends[:-1]], ends


def _text(words: Words) -> str:
    return "".join(words).casefold()


def _num_unfit(trees: Reading, gold: Sequence[GoldTree]) -> tuple[int, int]:
    """Trees over other words; how many words there are too many or too few."""
    pairs = [(words, tree.words) for (words, _), tree in zip(trees, gold, strict=False)]
    unfit = sum(len(a) != len(b) and _text(a) != _text(b) for a, b in pairs)
    return unfit, sum(abs(len(a) - len(b)) for a, b in pairs)


def _say_other_words(path: str, trees: Reading, gold: Sequence[GoldTree]) -> None:
    """Trees over as many words, but others: unknown words have a sign; or the file is another's."""
    pairs = [(words, tree.words) for (words, _), tree in zip(trees, gold, strict=True)]
    other = [
        (number, word, gold_word)
        for number, (words, gold_words) in enumerate(pairs, 1)
        if len(words) == len(gold_words) and _text(words) != _text(gold_words)
        for word, gold_word in zip(words, gold_words, strict=True)
        if word.casefold() != gold_word.casefold()
    ]
    if not other:
        return
    number, word, gold_word = other[0]
    first = f"in tree {number} {word!r} stands for {gold_word!r}"
    total = sum(len(words) for words, _ in pairs)
    if 2 * len(other) > total:
        raise DataError(
            f"--predictions {path}: the trees are of other sentences: {len(other):,} of "
            f"{total:,} words are not the gold trees' ({first})"
        )
    print(
        f"warning: {len(other):,} of {total:,} words of {path} are not the gold trees' ({first})",
        file=sys.stderr,
    )


def _empty_line(path: str) -> str:
    """Where a tree may be missing: `parse` leaves the line of a sentence that it left out empty."""
    try:
        lines = Path(path).read_bytes().rstrip().split(b"\n")
    except OSError:  # a folder of a treebank
        return ""
    empty = [number for number, line in enumerate(lines, 1) if not line.strip()]
    return f"; line {empty[0]} of the file is empty" if empty else ""


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
    for number, line in enumerate(Path(path).read_bytes().removeprefix(BOM_UTF8).split(b"\n"), 1):
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
