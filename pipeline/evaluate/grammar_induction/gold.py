"""The gold trees of grammar induction, cleaned as the protocol says."""

from __future__ import annotations

from pipeline.treebank import GoldTree, read_trees


def gold_trees(
    path: str, punctuation: bool, lower: bool, max_sentences: int | None = None
) -> tuple[list[GoldTree], int]:
    """The trees, and how many more had no words (nothing but punctuation).

    Args:
        punctuation: keep it; else it is removed by its tags.
        lower: lower-case the words.
        max_sentences: only the first so many trees.
    Raises:
        TreebankError: the file has no trees.
    """
    trees = read_trees(path)[:max_sentences]
    if not punctuation:
        trees = [tree.without_punctuation() for tree in trees]
    if lower:
        trees = [tree.lower() for tree in trees]
    nonempty = [tree for tree in trees if tree.words]
    return nonempty, len(trees) - len(nonempty)
