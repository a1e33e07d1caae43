"""The steps of the passes over a chart: ranges of cells, edges, rows and messages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    """Cells of one level that have the same number of splits."""

    first_cell: int
    num_cells: int
    first_edge: int
    num_splits: int

    @property
    def shape(self) -> tuple[int, int]:
        """(cells, splits of each): how its edges fold."""
        return self.num_cells, self.num_splits

    @property
    def cells(self) -> slice:
        return slice(self.first_cell, self.first_cell + self.num_cells)

    @property
    def edges(self) -> slice:
        return slice(self.first_edge, self.first_edge + self.num_cells * self.num_splits)


class Level(NamedTuple):
    """One batched step of the inside pass."""

    first_cell: int
    last_cell: int
    first_edge: int
    last_edge: int
    blocks: tuple[Block, ...]

    @property
    def cells(self) -> slice:
        return slice(self.first_cell, self.last_cell)

    @property
    def edges(self) -> slice:
        return slice(self.first_edge, self.last_edge)

    def local_edges(self, block: Block) -> slice:
        """The edges of one of its blocks, counted from the level's first edge."""
        first = block.first_edge - self.first_edge
        return slice(first, first + block.num_cells * block.num_splits)


class OutsideLevel(NamedTuple):
    """One batched step of the outside pass; rows are cells in outside order."""

    first_row: int
    last_row: int
    first_message: int
    last_message: int

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.last_row)

    @property
    def messages(self) -> slice:
        return slice(self.first_message, self.last_message)


def inside_levels(counts: np.ndarray, num_tokens: int) -> tuple[Level, ...]:
    """Args: counts: (levels, splits) number of cells; level 0 are the tokens."""
    levels, cell, edge = [], num_tokens, 0
    for row in counts[1:]:
        first_cell, first_edge, blocks = cell, edge, []
        for k, size in enumerate(row.tolist()):
            if size:
                blocks.append(Block(cell, size, edge, k))
                cell += size
                edge += size * k
        levels.append(Level(first_cell, cell, first_edge, edge, tuple(blocks)))
    return tuple(levels)


def outside_levels(sizes: np.ndarray, messages: np.ndarray) -> tuple[OutsideLevel, ...]:
    """Args: sizes, messages: number of cells and of messages of each level, roots first."""
    rows = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    ends = np.concatenate([[0], np.cumsum(messages)]).tolist()
    return tuple(
        OutsideLevel(rows[i], rows[i + 1], ends[i], ends[i + 1]) for i in range(1, len(sizes))
    )
