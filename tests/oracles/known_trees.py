"""Trees that are known without a model, and what a tree splits where."""

from __future__ import annotations

from collections.abc import Iterator

from gpst.tree import Tree


def left_branching(num_tokens: int) -> Tree:
    """((((a b) c) d) e)."""
    return Tree.from_splits(num_tokens, {(0, j): j - 1 for j in range(1, num_tokens)})


def right_branching(num_tokens: int) -> Tree:
    """(a (b (c (d e))))."""
    last = num_tokens - 1
    return Tree.from_splits(num_tokens, {(i, last): i for i in range(last)})


def splits_of(tree: Tree) -> Iterator[tuple[tuple[int, int], int]]:
    """((i, j), k) of every constituent, in post-order."""
    ends: list[tuple[int, int]] = []
    for span in tree.spans:
        if span[0] != span[1]:
            ends.pop()
            yield span, ends.pop()[1]
        ends.append(span)
