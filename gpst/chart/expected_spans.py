"""The tree whose spans are the likeliest, of a distribution over all binary trees of a sentence.

A tree is as probable as the exponential of the sum of its spans' scores. The best tree of all is
one of very many, and often right only in part; the tree of the largest expected number of spans
that a drawn tree shares with it loses less where many trees are about as good (Goodman 1996).
"""

from __future__ import annotations

import numpy as np

from gpst.jit.compiled import compiled

_UNLIKELY = 1e-9
"""What lies in a span this improbable adds nothing that would choose another tree."""


@compiled
def inside_sums(scores):
    """Logarithm of the sum over the trees of each span; the span's own score is part of them.

    Args:
        scores: [first, last] of each span of two and more.
    """
    size = len(scores)
    sums = np.zeros((size, size))
    for width in range(1, size):
        for i in range(size - width):
            j = i + width
            top = -np.inf
            for k in range(i, j):
                top = max(top, sums[i, k] + sums[k + 1, j])
            total = 0.0
            for k in range(i, j):
                total += np.exp(sums[i, k] + sums[k + 1, j] - top)
            sums[i, j] = scores[i, j] + top + np.log(total)
    return sums


@compiled
def span_probabilities(scores):
    """How probable it is that a tree drawn from the distribution has each span."""
    size = len(scores)
    sums = inside_sums(scores)
    shares = np.zeros((size, size))
    shares[0, size - 1] = 1.0
    for width in range(size - 1, 0, -1):
        for i in range(size - width):
            j = i + width
            if shares[i, j] < _UNLIKELY:
                continue
            rest = scores[i, j] - sums[i, j]
            for k in range(i, j):
                share = shares[i, j] * np.exp(sums[i, k] + sums[k + 1, j] + rest)
                shares[i, k] += share
                shares[k + 1, j] += share
    return shares


@compiled
def best_splits(scores):
    """CKY: the split of each span in the tree of the highest sum; of equal ones the first."""
    size = len(scores)
    best = np.zeros((size, size))
    cut = np.zeros((size, size), np.int32)
    for width in range(1, size):
        for i in range(size - width):
            j = i + width
            top, where = best[i, i] + best[i + 1, j], i
            for k in range(i + 1, j):
                value = best[i, k] + best[k + 1, j]
                if value > top:
                    top, where = value, k
            best[i, j] = top + scores[i, j]
            cut[i, j] = where
    return cut
