"""Atoms (the pieces of a word): spans that every tree has as constituents, by either rule.

constrain_chart: the chart has no cell that crosses an atom's edge (merge.py).
constrain_tree: what the authors' released code does. Boundaries inside atoms merge before all
others, but cells are runs of tokens, so that cells that cross atoms take part in the inside and
outside passes; only the tree may not take a split that cuts an atom.

Under constrain_tree a cell that crosses no atom always has a split that cuts none, so that every
chart has a tree. Units are at all times spans of the order's own tree, of which the atoms are
constituents: each lies within an atom or is made of whole atoms. A run of them that is no part of
one atom has a boundary between two atoms, and that boundary is a split of its cell.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64, Real

AtomRule = Literal["constrain_tree", "constrain_chart"]


def inside_words_first(
    scores: Real[np.ndarray, "N"], inside_word: Bool[np.ndarray, "N"]
) -> Real[np.ndarray, "N"]:
    """Numbers in the place of scores: the same order, but boundaries inside atoms before others.

    Args:
        scores: of the boundary after each token.
        inside_word: whether the boundary lies inside an atom.
    Returns:
        all different; of equal scores the smaller boundary has the higher one, so that ties
        are broken as they are among scores.
    """
    position = np.arange(len(scores))
    ranks = np.empty_like(scores)
    ranks[np.lexsort((-position, scores, ~inside_word))] = position
    return ranks


def cutting_edges(
    edges: Int64[np.ndarray, "E 4"],
    spans: Int64[np.ndarray, "C 2"],
    inside_word: Bool[np.ndarray, "N"],
) -> Int64[np.ndarray, "forbidden"]:
    """The edges that no tree may take: their split lies inside an atom, and their cell does not.

    A tree without them is one in which every atom is a constituent.

    Args:
        edges: left, right, parent, cut.
        spans: first and last token of each cell.
        inside_word: whether the boundary after a token lies inside an atom.
    Returns:
        numbers of edges, rising.
    """
    before = np.concatenate(([0], np.cumsum(inside_word)))
    first, last = spans[edges[:, 2]].T
    within = before[last] - before[first] == last - first
    return np.flatnonzero(inside_word[edges[:, 3]] & ~within)
