"""From the charts of single sentences to one numbering of all cells: compiled, integers only."""

from __future__ import annotations

import numpy as np

from gpst.chart import merge
from gpst.jit.compiled import compiled


@compiled
def _reachable_levels(num_cells, root, num_splits, children, level):
    """Level of each cell that the root reaches, -1 for the others."""
    level[:num_cells] = -1
    level[root] = 0
    for cell in range(num_cells - 1, -1, -1):
        if level[cell] >= 0:
            for s in range(num_splits[cell]):
                level[children[cell, s, 0]] = 0
                level[children[cell, s, 1]] = 0
    for cell in range(num_cells):
        if level[cell] >= 0:
            for s in range(num_splits[cell]):
                below = max(level[children[cell, s, 0]], level[children[cell, s, 1]])
                level[cell] = max(level[cell], below + 1)


@compiled
def chart_range(
    first, last, bound, scores, inside_word, starts, ends, window, schedule,
    spans, num_splits, children, level, num_cells, root,
):  # fmt: skip
    for s in range(first, last):
        a, b = starts[s], ends[s]
        i, j = a * bound, b * bound
        out = (spans[i:j], num_splits[i:j], children[i:j])
        num_cells[s], root[s] = merge.chart_of_sentence(
            scores[a:b], inside_word[a:b], window, schedule, out
        )
        _reachable_levels(num_cells[s], root[s], out[1], out[2], level[i:j])


@compiled
def number_cells(bound, starts, window, num_splits, level, num_cells, number):
    """Number the kept cells by (level, number of splits), stable; tokens keep their places.

    Returns the number of cells of each (level, number of splits).
    """
    top = 0
    for s in range(len(starts)):
        base = starts[s] * bound
        for c in range(num_cells[s]):
            top = max(top, level[base + c])
    counts = np.zeros((top + 1, window + 1), dtype=np.int64)
    for s in range(len(starts)):
        base = starts[s] * bound
        for c in range(num_cells[s]):
            if level[base + c] >= 0:
                counts[level[base + c], num_splits[base + c]] += 1
    at = np.zeros((top + 1, window + 1), dtype=np.int64)
    total = 0
    for i in range(top + 1):
        for k in range(window + 1):
            at[i, k] = total
            total += counts[i, k]
    for s in range(len(starts)):
        base = starts[s] * bound
        for c in range(num_cells[s]):
            if level[base + c] >= 0:
                place = at[level[base + c], num_splits[base + c]]
                number[base + c] = place
                at[level[base + c], num_splits[base + c]] += 1
    return counts


@compiled
def fill_cells(bound, starts, spans, level, num_cells, number, all_spans, row_of):
    for s in range(len(starts)):
        base = starts[s] * bound
        for c in range(num_cells[s]):
            if level[base + c] >= 0:
                cell = number[base + c]
                all_spans[cell, 0] = spans[base + c, 0] + starts[s]
                all_spans[cell, 1] = spans[base + c, 1] + starts[s]
                row_of[cell, 0] = base
                row_of[cell, 1] = base + c


@compiled
def fill_edges(num_tokens, row_of, all_spans, num_splits, children, number, edges, first):
    """edges: (E, 4) left, right, parent, cut, by cell and then by split."""
    e = 0
    for cell in range(num_tokens, len(row_of)):
        base, row = row_of[cell]
        first[cell - num_tokens] = e
        for s in range(num_splits[row]):
            left = number[base + children[row, s, 0]]
            edges[e, 0] = left
            edges[e, 1] = number[base + children[row, s, 1]]
            edges[e, 2] = cell
            edges[e, 3] = all_spans[left, 1]
            e += 1


@compiled
def outside_order(num_cells, edges):
    """Outside level of each cell (root 0, else one more than its highest parent) and its row."""
    depth = np.zeros(num_cells, dtype=np.int64)
    for e in range(len(edges) - 1, -1, -1):
        for side in range(2):
            child = edges[e, side]
            depth[child] = max(depth[child], depth[edges[e, 2]] + 1)
    sizes = np.zeros(depth.max() + 1, dtype=np.int64)
    for cell in range(num_cells):
        sizes[depth[cell]] += 1
    at = np.cumsum(sizes) - sizes
    row = np.empty(num_cells, dtype=np.int64)
    for cell in range(num_cells):
        row[cell] = at[depth[cell]]
        at[depth[cell]] += 1
    return sizes, row


@compiled
def fill_messages(edges, row, level_sizes, messages):
    """messages: (2E, 4) parent row, sibling cell, side, child row in its level; by child row.

    Returns the number of messages of each outside level.
    """
    num_cells = len(row)
    count = np.zeros(num_cells + 1, dtype=np.int64)
    for e in range(len(edges)):
        count[row[edges[e, 0]] + 1] += 1
        count[row[edges[e, 1]] + 1] += 1
    at = np.cumsum(count)
    level_first = np.cumsum(level_sizes) - level_sizes
    level_messages = np.zeros(len(level_sizes), dtype=np.int64)
    for i in range(len(level_sizes)):
        first = level_first[i]
        level_messages[i] = at[first + level_sizes[i]] - at[first]
    first_of = np.repeat(level_first, level_sizes)
    for e in range(len(edges)):
        for side in range(2):
            child = row[edges[e, side]]
            m = at[child]
            at[child] += 1
            messages[m, 0] = row[edges[e, 2]]
            messages[m, 1] = edges[e, 1 - side]
            messages[m, 2] = side
            messages[m, 3] = child - first_of[child]
    return level_messages
