"""The maps of a pair model's scores (phi) over many rows, forward and backward without a graph.

The siblings of the outside pass are inside vectors, all known before its first level: either
side's map takes every cell once, and each message looks up the row of its sibling's side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.chart.pair_weights import Linear, LinearSum
from gpst.kernels import pair
from gpst.layers.composition import Affine


class KeptScore(NamedTuple):
    """Activations of a map; the slope only where a gradient will be wanted."""

    after_gelu: Tensor
    gelu_slope: Tensor | None
    out: Tensor
    """(P, score width)"""


class ScoreMap:
    """The MLP of one role.

    Args:
        sums: where the gradients of its weights are added up; None: no backward pass follows.
    """

    def __init__(
        self,
        linears: tuple[Affine, Affine],
        sums: tuple[LinearSum, LinearSum] | None,
        dtype: torch.dtype,
    ):
        self._dense, self._out = (Linear(layer, dtype) for layer in linears)
        self._sums = sums

    def forward(self, x: Float[Tensor, "P D"], keep: bool) -> KeptScore:
        """Args: x: in the type of computation. keep: `backward` will follow."""
        after, slope = pair.gelu(self._dense(x), keep)
        return KeptScore(after, slope, self._out(after))

    def backward(
        self, kept: KeptScore, x: Float[Tensor, "P D"], grad: Float[Tensor, "P score"]
    ) -> Float[Tensor, "P D"]:
        """Gradient of the input from that of the output."""
        assert self._sums is not None
        assert kept.gelu_slope is not None
        dense_sum, out_sum = self._sums
        out_sum.add(grad, kept.after_gelu)
        y = self._out.grad_input(grad.unsqueeze(0)).mul_(kept.gelu_slope)
        dense_sum.add(y[0], x)
        return self._dense.grad_input(y)[0]


class Siblings:
    """What the maps of left and of right siblings give for all C cells.

    Args:
        maps: of a left, of a right sibling.
        inside: in the type of computation.
        chunks: the cells, in parts.
        keep: keep the activations for the backward pass.
    """

    def __init__(
        self,
        maps: Sequence[ScoreMap],
        inside: Float[Tensor, "C D"],
        chunks: Sequence[slice],
        keep: bool,
    ):
        self._maps, self._chunks = maps, chunks
        records = [[each.forward(inside[chunk], keep) for chunk in chunks] for each in maps]
        self.values: Float[Tensor, "2*C score"] = torch.cat(
            [kept.out for of_map in records for kept in of_map]
        )
        """All cells as left, then all as right siblings."""
        self._kept = (
            [[kept._replace(out=self.values) for kept in of_map] for of_map in records]
            if keep
            else None
        )
        self._grad: Tensor | None = None

    def add(self, row: Int64[Tensor, "P"], grad: Float[Tensor, "P score"]) -> None:
        """Adds gradients of these rows of `values`."""
        if self._grad is None:
            self._grad = torch.zeros_like(self.values, dtype=grad.dtype)
        self._grad.index_add_(0, row, grad)

    def backward(self, inside: Float[Tensor, "C D"], grad_inside: Float[Tensor, "C D"]) -> None:
        """Adds the gradient of the inside vectors to that of all that was added."""
        if self._grad is None:
            return
        of_maps = self._grad.to(inside.dtype).view(len(self._maps), len(inside), -1)
        for number, (each, grad) in enumerate(zip(self._maps, of_maps, strict=True)):
            for place, chunk in enumerate(self._chunks):
                x = inside[chunk]
                kept = self._kept[number][place] if self._kept else each.forward(x, True)
                grad_inside[chunk] += each.backward(kept, x, grad[chunk]).to(grad_inside.dtype)
