"""A pair model over all levels by the kernels of whole levels, and its weights' gradients.

What is kept lies in one buffer a kind for all layers and pairs: a layer's rows after those of the
layer before, vector v of pair p in row 2p + v. So the gradient of a weight is one product after the
last level, for all layers at once.
"""

# Kernels take plain numbers for constexpr parameters.
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.chart.fused_gradients import Branches, pair_gradients
from gpst.chart.pairs import Pairs
from gpst.chart.walk import PAIRS, WALKED_PAIRS, Walk
from gpst.kernels.dropout import draw_seed, hash_keys
from gpst.layers.composition import Affine, PairMaps
from gpst.layers.transformer import compute_dtype

_NARROW = 32
"""Inputs that a product takes at a time in a walk and on the way back, so that all values of a
program fit into registers."""


def flat_weights(maps: PairMaps, dtype: torch.dtype) -> Float[Tensor, "_"]:
    """All weights of a pair model in the order of `weight_offsets`; a bias has a row a role."""
    layers, role = maps.layers, maps.role.detach()
    parts: list[Tensor] = []
    for layer in layers:
        parts += [layer.query_key.weight, layer.value.weight]
    for layer in layers:
        for row in F.linear(role, layer.query_key.weight.detach(), layer.query_key.bias.detach()):
            parts += [row, layer.value.bias]
    for name in ("attention_out", "ffn_in", "ffn_out"):
        parts += [getattr(layer, name).weight for layer in layers]
        parts += [getattr(layer, name).bias for layer in layers]
    for place in range(2):
        parts += [score[place].weight for score in maps.scores]
        parts += [score[place].bias for score in maps.scores]
    return torch.cat([part.detach().reshape(-1) for part in parts]).to(dtype)


class FusedPass:
    """Forward over all levels, then backward over them.

    Args:
        maps: of the pair model. like: a tensor of the tables' type and device.
        compared: of the two vectors, those that the pass itself maps for the score.
        routes: of gradients.
        recompute: what is kept is given up after the forward pass, and made again on the way back,
            at once for all levels; dropout falls on the same places.
    """

    def __init__(
        self, maps: PairMaps, walk: Walk, like: Tensor, compared: int, routes: int, recompute: bool
    ):
        self._maps, self._walk, self._routes, self._recompute = maps, walk, routes, recompute
        self.dtype, self.device = compute_dtype(like), like.device
        first = maps.layers[0]
        self._layers, self._pairs = len(maps.layers), len(walk.order)
        self._dim, self._inner = first.value.weight.shape[1], len(first.ffn_in.weight)
        self._score, self._compared = len(maps.scores[0][1].weight), compared
        self.weights = flat_weights(maps, self.dtype)
        drops = maps.dropout > 0.0
        threshold = round(maps.dropout * 2**16)
        self._dropout = (
            *(hash_keys(draw_seed()) if drops else (0, 0)), threshold, 2**16 / (2**16 - threshold),
        )  # fmt: skip
        self._constants = self._make_constants(first.num_heads, drops)
        self._narrow = {"BK": min(_NARROW, self._constants["BK"])}
        self._walked = {"PAIRS": WALKED_PAIRS, **self._narrow}
        self._kept: dict[str, Tensor] = {}
        self._room = 2 * walk.most_slots if routes == 2 else 0
        self.scores = self._empty(self._pairs, exact=True)
        self.pair_weights = self._empty(self._pairs, exact=True)

    def _make_constants(self, heads: int, drops: bool) -> dict[str, Any]:
        def power(number: int, least: int = 16) -> int:
            return max(least, 1 << (number - 1).bit_length())

        tf32 = self.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
        return {
            "L": self._layers, "D": self._dim, "F": self._inner, "S": self._score, "H": heads,
            "ROLES": len(self._maps.role), "COMPARED": self._compared,
            "WIDTH": power(self._dim), "HEAD": power(self._dim // heads, 1),
            "SCORE": power(self._score, 1), "PAIRS": PAIRS,
            "BN": min(128, power(self._dim)), "BK": min(64, power(self._dim)),
            "DROPS": drops, "PRECISION": "tf32" if tf32 else "ieee",
        }  # fmt: skip

    def _empty(self, rows: int, *width: int, exact: bool = False) -> Tensor:
        dtype = torch.float32 if exact else self.dtype
        return torch.empty(rows, *width, dtype=dtype, device=self.device)

    def _allocate(self) -> dict[str, Tensor]:
        """What the kernels keep for the way back, by the names of their arguments."""
        pairs, dim, maps, room = self._pairs, self._dim, self._compared, self._room
        rows = 2 * pairs * self._layers
        return {
            "x": self._empty(rows + 2 * pairs, dim),
            "packed": self._empty(rows + room, 3 * dim),
            "weight": self._empty(rows, self._constants["H"]),
            "attended": self._empty(rows, dim),
            "attended_std": self._empty(rows, exact=True),
            "ffn": self._empty(rows + room, self._inner),
            "out_std": self._empty(rows, exact=True),
            "vectors": self._empty(pairs, dim),
            "vector_std": self._empty(pairs, exact=True),
            "map_gelu": self._empty(maps * pairs, dim),
            "map_slope": self._empty(maps * pairs, dim),
            "map_out": self._empty(maps * pairs, self._score),
        }

    def forward(self, pairs: Pairs, siblings: Tensor | None, mixing: dict[str, Any]) -> None:
        """Fills the tables level by level; `scores` and `pair_weights` are then those of all pairs.

        Args:
            pairs: all of them, and their tables.
            siblings: what the maps of siblings give, where they are not `compared`.
            mixing: what is given to the kernels of cells (`mix_cells`).
        """
        self._fill(pairs, siblings, mixing)
        if self._recompute:
            self._kept = {}

    def make_again(self, pairs: Pairs, siblings: Tensor | None, mixing: dict[str, Any]) -> None:
        """What `forward`, with the same arguments, has not kept; before `backward`.

        The tables are filled once more, with the same values.
        """
        if self._recompute:
            self._fill(pairs, siblings, mixing)

    def _fill(self, pairs: Pairs, siblings: Tensor | None, mixing: dict[str, Any]) -> None:
        from gpst.kernels.gpu.cells import mix_cells
        from gpst.kernels.gpu.walk import pairs_forward, walk_forward

        walk, nothing = self._walk, self._walk.order
        self._kept = self._allocate()
        self._side, self._sibling = pairs.side, pairs.sibling
        arguments = {
            "first_table": pairs.first_table, "first_index": pairs.first,
            "second_table": pairs.second_table, "second_index": pairs.second,
            "side": nothing if pairs.side is None else pairs.side,
            "sibling": nothing if pairs.sibling is None else pairs.sibling,
            "sibling_values": self.scores if siblings is None else siblings,
            "scores": self.scores, **self._made_again(1), **self._shared(),
        }  # fmt: skip
        cells = {"pair_weights": self.pair_weights, "starts": walk.starts, **mixing}
        wide = {"num_warps": 8, "num_stages": 2}
        for launch in walk.launches:
            grid = (-(-(launch.last - launch.first) // PAIRS),)
            pairs_forward[grid](
                order=walk.order, first=launch.first, last=launch.last, **arguments, **wide
            )
            names = {name: value for name, value in cells.items() if name != "pair_weights"}
            mix_cells[(launch.last_cell - launch.first_cell,)](
                cell_order=walk.cell_order, first=launch.first_cell, vectors=self._kept["vectors"],
                scores=self.scores, weights=self.pair_weights, D=self._dim,
                WIDTH=self._constants["WIDTH"], **names,
            )  # fmt: skip
        if walk.groups:
            walk_forward[(walk.groups,)](
                steps=walk.steps, step_starts=walk.step_starts, order=walk.order,
                cell_order=walk.cell_order, **cells, **(arguments | self._walked), **wide,
            )  # fmt: skip

    def _made_again(self, layers: int) -> dict[str, Tensor]:
        """Mixed values and GELU's, of one layer at a time forward: the way back makes them again.

        They are more than a third of what would be kept otherwise.
        """
        rows = 2 * self._pairs * layers
        return {"mixed": self._empty(rows, self._dim), "inner": self._empty(rows, self._inner)}

    def _shared(self) -> dict[str, Any]:
        """Arguments of the kernels of pairs in either direction."""
        key, other_key, threshold, scale = self._dropout
        return {
            "weights": self.weights, **self._kept, "num_edges": self._pairs,
            "score_scale": self._maps.score_scale, "key": key, "other_key": other_key,
            "threshold": threshold, "keep_scale": scale, **self._constants,
        }  # fmt: skip

    def backward(
        self, siblings: Tensor | None, mixing: dict[str, Any], grad_table: Float[Tensor, "R rows D"]
    ) -> tuple[Float[Tensor, "R rows2 D"], Tensor]:
        """Goes back once, from the highest level to the lowest.

        Args:
            grad_table: fp32, of the pass's own table, of each route; it is overwritten.
        Returns:
            (gradients of the pairs' rows, those of the mapped siblings of each pair).
        """
        from gpst.kernels.gpu.cells import cells_backward
        from gpst.kernels.gpu.walk import pairs_backward, walk_backward

        walk, rows = self._walk, 2 * self._pairs * self._layers
        self._again = self._made_again(self._layers)
        gradient = self._empty(self._routes * 2 * self._pairs, self._dim)
        self._inner_branch = self._empty(rows + self._room, self._dim)
        self._outer_branch = self._empty(rows + self._room, self._dim)
        grad_scores = self._empty(self._pairs, exact=True)
        grad_sibling = self.scores
        if siblings is not None:
            grad_sibling = self._empty(self._pairs, self._score)
        arguments = {
            "owner": walk.owner, "sibling": walk.order if self._sibling is None else self._sibling,
            "sibling_values": self.scores if siblings is None else siblings,
            "pair_weights": self.pair_weights, "grad_scores": grad_scores,
            "grad_table": grad_table, "num_cells": grad_table.shape[1], "gradient": gradient,
            "inner_branch": self._inner_branch, "outer_branch": self._outer_branch,
            "mixed_branch": self._empty(2 * walk.most_slots, self._dim),
            "grad_sibling": grad_sibling, **self._again, **self._shared(), **self._narrow,
        }  # fmt: skip
        del arguments["map_gelu"]  # only `weight_gradients` reads it
        cells = {
            "starts": walk.starts, "incoming_starts": walk.incoming_starts,
            "incoming": walk.incoming, "ROUTES": self._routes,
            "grad_edge_heights": torch.empty_like(grad_scores), **mixing,
        }  # fmt: skip
        wide = {"num_warps": 8, "num_stages": 2}
        if walk.groups:
            walk_backward[(walk.groups,)](
                steps=walk.steps, step_starts=walk.step_starts, order=walk.order, base=walk.base,
                cell_order=walk.cell_order, **cells, **(arguments | self._walked), **wide,
            )  # fmt: skip
        for launch in reversed(walk.launches):
            cells_backward[(launch.last_cell - launch.first_cell,)](
                cell_order=walk.cell_order, first=launch.first_cell, vectors=self._kept["vectors"],
                weights=self.pair_weights, grad_rows=gradient, num_rows=2 * self._pairs,
                grad_table=grad_table, num_cells=grad_table.shape[1], grad_scores=grad_scores,
                D=self._dim, WIDTH=self._constants["WIDTH"], **cells,
            )  # fmt: skip
            grid = (-(-(launch.last - launch.first) // PAIRS),)
            pairs_backward[grid](
                order=walk.order, first=launch.first, last=launch.last,
                offset=mixing["offset"], routes=min(launch.routes, self._routes), **arguments,
                **wide,
            )  # fmt: skip
        return gradient.view(self._routes, -1, self._dim), grad_sibling

    def weight_gradients(self, siblings: list[tuple[Affine, Affine]]) -> tuple[Tensor, ...]:
        """The gradients of `maps.tensors`, after `backward`.

        Args:
            siblings: gradients of the score maps that are not `compared`.
        """
        pairs, layers, rows = self._pairs, self._layers, 2 * self._pairs * self._layers
        kept = self._kept

        def of_layers(buffer: Tensor) -> Tensor:
            return buffer[:rows].view(layers, 2 * pairs, -1)

        def of_maps(buffer: Tensor) -> Tensor:
            return buffer.view(self._compared, pairs, -1)

        by_vector = kept["x"][: 2 * pairs].view(pairs, 2, -1)[:, : self._compared].transpose(0, 1)
        branches = Branches(
            x=of_layers(kept["x"]), packed=of_layers(kept["packed"]),
            mixed=of_layers(self._again["mixed"]), attention=of_layers(self._inner_branch),
            attended=of_layers(kept["attended"]), inner=of_layers(self._again["inner"]),
            ffn=of_layers(kept["ffn"]), ffn_out=of_layers(self._outer_branch), map_in=by_vector,
            map_dense=of_maps(kept["map_slope"]), map_gelu=of_maps(kept["map_gelu"]),
            map_out=of_maps(kept["map_out"]),
        )  # fmt: skip
        return pair_gradients(self._maps, branches, self._side, siblings)


def collect(
    starts: Int64[Tensor, "_"],
    incoming: Int64[Tensor, "_"],
    rows: Float[Tensor, "rows D"],
    into: Float[Tensor, "cells D"],
) -> None:
    """into[c] += the rows that read cell c."""
    from gpst.kernels.gpu.cells import collect_rows

    width = max(16, 1 << (into.shape[1] - 1).bit_length())
    collect_rows[(len(into),)](starts, incoming, rows, into, D=into.shape[1], WIDTH=width)
