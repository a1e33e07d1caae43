"""What goes into a pair model from the tables of a chart, and what flows back into it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor


class Pairs(NamedTuple):
    """P pairs of rows of two tables; for a decomposition also which child and which sibling."""

    first_table: Float[Tensor, "rows D"]
    first: Int64[Tensor, "P"]
    second_table: Float[Tensor, "rows2 D"]
    second: Int64[Tensor, "P"]
    side: Int64[Tensor, "P"] | None = None
    """0 when the child is the left one, 1 when it is the right one."""
    sibling: Int64[Tensor, "P"] | None = None
    """Row of the second vector, as the sibling on its side, in `Siblings.values`."""

    def chunk(self, chunk: slice) -> Pairs:
        side = None if self.side is None else self.side[chunk]
        sibling = None if self.sibling is None else self.sibling[chunk]
        return self._replace(
            first=self.first[chunk], second=self.second[chunk], side=side, sibling=sibling
        )

    def gather(self) -> Float[Tensor, "2 P D"]:
        dim = self.first_table.shape[1]
        rows = self.first_table.new_empty(2, len(self.first), dim)
        torch.index_select(self.first_table, 0, self.first, out=rows[0])
        torch.index_select(self.second_table, 0, self.second, out=rows[1])
        return rows


class OutputGradients(NamedTuple):
    """What flows back into the vectors and scores of P pairs, by R routes; route 0 is their sum."""

    cells: Float[Tensor, "R cells D"]
    """Gradient of the weighted sum that a pair takes part in."""
    cell: Int64[Tensor, "P"]
    """Which of the cells that is."""
    weights: Float[Tensor, "P"]
    """The pair's weight in the sum."""
    scores: Float[Tensor, "P"]
    """Gradient of the scores."""

    def chunk(self, chunk: slice) -> OutputGradients:
        return OutputGradients(
            self.cells, self.cell[chunk], self.weights[chunk], self.scores[chunk]
        )

    def vectors(self) -> Float[Tensor, "R P D"]:
        """Gradient of the vectors."""
        return self.cells.index_select(1, self.cell).mul_(self.weights.unsqueeze(1))
