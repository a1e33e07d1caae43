"""Which cells the chart of one sentence has, and their splits: compiled, integers only.

A sentence is a list of *units*, at first its tokens (or its atoms). `runs[u, m]` is the cell of the
run of m units that starts at unit u, so that the children of a new cell are found by position and
no table over pairs of tokens is needed: time and memory are linear in the tokens.
"""

from __future__ import annotations

import numpy as np

from gpst.jit.compiled import compiled

SCORE, HEIGHT = 0, 1
_NONE = -1
# Columns of `links`, the list of units: neighbours, last token, last original unit, and for an
# original unit the unit that it now ends (a boundary is named by the original unit before it).
_NEXT, _PREVIOUS, _LAST, _TAIL, _OWNER = 0, 1, 2, 3, 4


def cells_bound(window: int) -> int:
    """At most so many cells (tokens included) a token: initial runs twice, then per merge."""
    return 1 + 2 * window + (window + 1) * (window + 2) // 2 - 1


@compiled
def _new_cell(u, m, links, runs, out, count):
    """Make the cell of the run of m units from u; its splits are the unit boundaries inside."""
    ends, num_splits, children = out
    v = u
    for r in range(1, m):
        children[count, r - 1, 0] = runs[u, r]
        v = links[v, _NEXT]
        children[count, r - 1, 1] = runs[v, m - r]
    ends[count, 0] = ends[children[count, 0, 0], 0]
    ends[count, 1] = links[v, _LAST]
    num_splits[count] = m - 1
    runs[u, m] = count
    return count + 1


@compiled
def _has_run(u, m, links):
    for _ in range(m - 1):
        u = links[u, _NEXT]
        if u == _NONE:
            return False
    return True


@compiled
def _merge_order(scores):
    """Boundaries from the first to merge to the last: rising score.

    Among equal scores the larger boundary merges first, so that the smaller one splits first:
    exactly the reverse of the top-down order.
    """
    backwards = scores[::-1].copy()
    return len(scores) - 1 - np.argsort(backwards, kind="mergesort")


@compiled
def _join(boundary, links):
    """Join the two units at a boundary; the left one stays. Returns it."""
    a = links[boundary, _OWNER]
    b = links[a, _NEXT]
    after = links[b, _NEXT]
    links[a, _NEXT] = after
    if after != _NONE:
        links[after, _PREVIOUS] = a
    links[a, _LAST] = links[b, _LAST]
    links[a, _TAIL] = links[b, _TAIL]
    links[links[a, _TAIL], _OWNER] = a
    return a


@compiled
def _merge_by_score(scores, window, links, runs, out, count):
    """One boundary at a time until window + 1 units are left (the released code's schedule)."""
    alive = len(scores) + 1
    for boundary in _merge_order(scores):
        if alive <= window + 1:
            break
        u = _join(boundary, links)
        alive -= 1
        # A run that holds the joined unit was a run of one more unit before: only the longest
        # is new.
        for distance in range(window + 1):
            for m in range(distance + 1, window + 1):
                runs[u, m] = runs[u, m + 1]
            if _has_run(u, window + 1, links):
                count = _new_cell(u, window + 1, links, runs, out, count)
            u = links[u, _PREVIOUS]
            if u == _NONE:
                break
    return count, alive


@compiled
def _boundary_heights(scores):
    """Height of the node of each boundary in the top-down tree of the scores."""
    n = len(scores) + 1
    head = np.arange(n)  # by last unit: the unit that starts the subtree
    tail = np.arange(n)  # by first unit: the unit that ends the subtree
    unit_height = np.zeros(n, dtype=np.int64)
    heights = np.zeros(n - 1, dtype=np.int64)
    for boundary in _merge_order(scores):
        a, b = head[boundary], boundary + 1
        heights[boundary] = 1 + max(unit_height[a], unit_height[b])
        unit_height[a] = heights[boundary]
        tail[a] = tail[b]
        head[tail[a]] = a
    return heights


@compiled
def _touch_left(u, window, links, stamp, mark, touched, num_touched):
    """List unit u and the window units before it, each once."""
    for _ in range(window + 1):
        if stamp[u] != mark:
            stamp[u] = mark
            touched[num_touched] = u
            num_touched += 1
        u = links[u, _PREVIOUS]
        if u == _NONE:
            break
    return num_touched


@compiled
def _merge_by_height(scores, window, links, runs, out, count):
    """All boundaries of one height together (the paper's appendix)."""
    heights = _boundary_heights(scores)
    by_height = np.argsort(heights, kind="mergesort")
    alive = len(scores) + 1
    parts = np.ones(alive, dtype=np.int64)  # units of the step before that a unit is made of
    stamp = np.zeros(alive, dtype=np.int64)
    touched = np.empty(alive, dtype=np.int64)
    at = 0
    while alive > window + 1:
        height, first = heights[by_height[at]], at
        while at < len(by_height) and heights[by_height[at]] == height:
            parts[_join(by_height[at], links)] = 2
            alive -= 1
            at += 1
        num_touched = 0
        for i in range(first, at):
            # Two boundaries of one height are never neighbours: the owner is still right.
            u = links[by_height[i], _OWNER]
            num_touched = _touch_left(u, window, links, stamp, height, touched, num_touched)
        for m in range(1, window + 2):
            for i in range(num_touched):
                u = touched[i]
                if not _has_run(u, m, links):
                    continue
                old, v = 0, u
                for _ in range(m):
                    old += parts[v]
                    v = links[v, _NEXT]
                if old <= window + 1:
                    runs[u, m] = runs[u, old]
                else:
                    count = _new_cell(u, m, links, runs, out, count)
        for i in range(num_touched):
            parts[touched[i]] = 1
    return count, alive


@compiled
def _chart_of_units(unit_cell, unit_last, scores, window, schedule, out, count):
    """The chart over units. Returns (number of cells so far, cell of the root)."""
    n = len(unit_cell)
    links = np.empty((n, 5), dtype=np.int64)
    for u in range(n):
        links[u, _NEXT] = u + 1 if u + 1 < n else _NONE
        links[u, _PREVIOUS] = u - 1
        links[u, _LAST] = unit_last[u]
        links[u, _TAIL] = u
        links[u, _OWNER] = u
    runs = np.full((n, window + 2), _NONE, dtype=np.int64)
    runs[:, 1] = unit_cell
    for m in range(2, min(window + 1, n) + 1):
        for u in range(n - m + 1):
            count = _new_cell(u, m, links, runs, out, count)
    alive = n
    if n > window + 1:
        if schedule == SCORE:
            count, alive = _merge_by_score(scores, window, links, runs, out, count)
        else:
            count, alive = _merge_by_height(scores, window, links, runs, out, count)
    return count, runs[0, alive]


@compiled
def chart_of_sentence(scores, inside_word, window, schedule, out):
    """All cells of one sentence, tokens first, children before parents.

    Args:
        scores: (n,) score of the boundary after each token; the last is not read.
        inside_word: (n,) whether the boundary after a token lies inside an atom.
        out: arrays that are filled: spans (cells, 2), number of splits (cells,), children by
            split (cells, window, 2).
    Returns:
        (number of cells, cell of the root).
    """
    n = len(scores)
    for token in range(n):
        out[0][token, 0] = token
        out[0][token, 1] = token
        out[1][token] = 0
    count, num_units, start = n, 0, 0
    unit_cell = np.empty(n, dtype=np.int64)
    unit_last = np.empty(n, dtype=np.int64)
    while start < n:
        stop = start
        while stop < n - 1 and inside_word[stop]:
            stop += 1
        root = start
        if stop > start:
            tokens = np.arange(start, stop + 1)
            inside = scores[start:stop]
            count, root = _chart_of_units(tokens, tokens, inside, window, schedule, out, count)
        unit_cell[num_units] = root
        unit_last[num_units] = stop
        num_units += 1
        start = stop + 1
    between = scores[unit_last[: num_units - 1]]
    return _chart_of_units(
        unit_cell[:num_units], unit_last[:num_units], between, window, schedule, out, count
    )
