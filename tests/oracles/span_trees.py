"""Binary trees as sets of spans (first, last)."""

from __future__ import annotations

from collections.abc import Iterator

Spans = frozenset[tuple[int, int]]


def all_trees(i: int, j: int) -> Iterator[Spans]:
    """Every tree over places i to j, without spans of one."""
    if i == j:
        yield frozenset()
    for k in range(i, j):
        for left in all_trees(i, k):
            for right in all_trees(k + 1, j):
                yield left | right | {(i, j)}
