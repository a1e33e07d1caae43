"""The pruned chart as docs/how_it_works.md has it: slow, plain lists, single sentences."""

from __future__ import annotations

Span = tuple[int, int]


def merge_order(scores: list[float]) -> list[int]:
    """Boundaries from lowest to highest score; of equals, the larger boundary merges first."""
    return sorted(range(len(scores)), key=lambda k: (scores[k], -k))


def parser_tree_heights(scores: list[float]) -> dict[int, int]:
    """Height of the node of each boundary in the tree that splits at the highest score first."""
    heights: dict[int, int] = {}

    def height(first: int, last: int) -> int:
        """Of the tree over boundaries first..last-1."""
        if first >= last:
            return 0
        best = max(range(first, last), key=lambda k: (scores[k], -k))
        heights[best] = 1 + max(height(first, best), height(best + 1, last))
        return heights[best]

    height(0, len(scores))
    return heights


def merge_steps(scores: list[float], schedule: str) -> list[set[int]]:
    """The boundaries that merge together, step after step."""
    if schedule == "score":
        return [{k} for k in merge_order(scores)]
    heights = parser_tree_heights(scores)
    top = max(heights.values(), default=0)
    return [{k for k, h in heights.items() if h == step} for step in range(1, top + 1)]


def _add_cells(cells: dict[Span, list[int]], units: list[Span], window: int) -> None:
    for size in range(2, window + 2):
        for i in range(len(units) - size + 1):
            run = units[i : i + size]
            cells.setdefault((run[0][0], run[-1][1]), [u[1] for u in run[:-1]])


def chart_of_units(
    units: list[Span], scores: dict[int, float], window: int, schedule: str
) -> dict[Span, list[int]]:
    """Every cell made, span -> splits, before pruning; scores by the token before the boundary."""
    root = (units[0][0], units[-1][1])
    boundaries = [u[1] for u in units[:-1]]
    cells: dict[Span, list[int]] = {}
    if len(units) == 1:
        return cells
    _add_cells(cells, units, window)
    for step in merge_steps([scores[b] for b in boundaries], schedule):
        if root in cells:
            break
        for k in step:
            left = next(u for u in units if u[1] == boundaries[k])
            right = next(u for u in units if u[0] == boundaries[k] + 1)
            at = units.index(left)
            units = [*units[:at], (left[0], right[1]), *units[at + 2 :]]
        _add_cells(cells, units, window)
    return cells


def chart(
    scores: list[float],
    window: int,
    schedule: str,
    atoms: list[Span] | None = None,
    may_cross: bool = False,
) -> dict[Span, list[int]]:
    """The kept cells of a sentence: span -> splits, smallest first.

    Args:
        atoms: all of the sentence's, those of one token too.
        may_cross: cells may cross atoms, whose inner boundaries then only merge before all others.
    """
    n = len(scores) + 1
    by_token = dict(enumerate(scores))
    units: list[Span] = []
    made: dict[Span, list[int]] = {}
    if may_cross and atoms is not None:
        below = max(scores, default=0) - min(scores, default=0) + 1
        for i, j in atoms:
            for k in range(i, j):
                by_token[k] -= below
        atoms = None
    for atom in atoms or [(t, t) for t in range(n)]:
        tokens = [(t, t) for t in range(atom[0], atom[1] + 1)]
        made.update(chart_of_units(tokens, by_token, window, schedule))
        units.append(atom)
    made.update(chart_of_units(units, by_token, window, schedule))
    kept: dict[Span, list[int]] = {}
    work = [(0, n - 1)]
    while work:
        i, j = work.pop()
        if i == j or (i, j) in kept:
            continue
        kept[i, j] = sorted(made[i, j])
        for k in kept[i, j]:
            work += [(i, k), (k + 1, j)]
    return kept


def cuts(cell: Span, k: int, atom: Span) -> bool:
    """Whether a split divides a cell so that neither child holds the part of the atom that it has,
    or the cell has a part of the atom that is neither all of it nor all of the cell."""
    (i, j), (a, b) = cell, atom
    apart = j < a or b < i
    within = a <= i and j <= b
    in_left, in_right = i <= a and b <= k, k < a and b <= j
    return not (apart or within or in_left or in_right)


Split = tuple[Span, int]


def forest(cells: dict[Span, list[int]], span: Span) -> list[list[Split]]:
    """Every tree over a span that the chart holds, as its splits in pre-order."""
    i, j = span
    if i == j:
        return [[]]
    return [
        [(span, k), *left, *right]
        for k in cells[span]
        for left in forest(cells, (i, k))
        for right in forest(cells, (k + 1, j))
    ]
