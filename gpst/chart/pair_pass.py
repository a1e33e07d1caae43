"""A pair model (composition, decomposition) over the pairs of many levels, written out.

The passes over the chart go through the levels themselves; what a level does to its pairs is done
here, forward and backward, without an autograd graph: pairs go through in chunks that stay in the
caches of a CPU, weights' gradients are added up in place, both routes share one pass back, and a
chunk's activations can be computed again instead of being kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.chart.pair_weights import LayerWeights, Sums
from gpst.chart.pairs import OutputGradients, Pairs
from gpst.chart.scores import KeptScore, ScoreMap, Siblings
from gpst.kernels import pair
from gpst.kernels.dropout import draw_seed, keep_masks
from gpst.layers.composition import PairMaps
from gpst.layers.transformer import compute_dtype

_PAIRS_A_CHUNK = {"cpu": 512}


def pairs_a_chunk(device_type: str, size: int) -> int:
    """Of `size` pairs so many go through a model at once."""
    return _PAIRS_A_CHUNK.get(device_type, max(size, 1))


class _KeptLayer(NamedTuple):
    """Activations of one layer over 2P rows; dropout of the inner ones is in them already."""

    x: Tensor
    packed: Tensor
    weight: Tensor
    mixed: Tensor
    attended: Tensor
    attended_std: Tensor
    after_gelu: Tensor
    gelu_slope: Tensor | None
    out: Tensor
    out_std: Tensor
    weight_mask: Tensor | None
    attention_mask: Tensor | None
    ffn_mask: Tensor | None


class _Kept(NamedTuple):
    layers: list[_KeptLayer]
    scores: list[KeptScore]
    """Of the first vector; of the second as well where it is no sibling."""
    vectors: Tensor
    inverse_std: Tensor


class PairPass:
    """Forward over levels, then backward over the same levels in reverse.

    Args:
        maps: of the pair model.
        like: a tensor of the tables' type and device.
        with_gradient: a backward pass will follow.
        recompute: keep no activations for it; compute them again.
    """

    def __init__(self, maps: PairMaps, like: Tensor, with_gradient: bool, recompute: bool):
        dtype = compute_dtype(like)
        self.dtype, self.device = dtype, like.device
        self.sums = Sums(maps, torch.promote_types(dtype, torch.float32)) if with_gradient else None
        self._layers = [LayerWeights(layer, maps.role, dtype) for layer in maps.layers]
        sums = self.sums.scores if self.sums else [None] * len(maps.scores)
        self._maps = [
            ScoreMap(linears, of_map, dtype)
            for linears, of_map in zip(maps.scores, sums, strict=True)
        ]
        self.siblings: Siblings | None = None
        self._score_scale = maps.score_scale
        self._recompute = recompute
        self._dropout = maps.dropout
        self._seed = draw_seed() if self._dropout else 0
        self._masks = 0
        self._levels: list[list[tuple[int, _Kept | None]]] = []

    def project_siblings(self, inside: Float[Tensor, "C D"]) -> None:
        """Of a decomposition, before its first level. Args: inside: of all cells."""
        keep = self.sums is not None and not self._recompute
        chunks = self._chunks(len(inside))
        self.siblings = Siblings(self._maps[1:], inside.to(self.dtype), chunks, keep)

    def siblings_backward(
        self, inside: Float[Tensor, "C D"], grad_inside: Float[Tensor, "C D"]
    ) -> None:
        """After the last level that goes back. Args: grad_inside: added to."""
        if self.siblings is not None:
            self.siblings.backward(inside.to(self.dtype), grad_inside)

    def forward(self, pairs: Pairs) -> tuple[Float[Tensor, "P D"], Float[Tensor, "P"]]:
        """(vectors, scores in fp32) of the pairs of one level."""
        size, dim = len(pairs.first), pairs.first_table.shape[1]
        exact = torch.promote_types(self.dtype, torch.float32)
        vectors = torch.empty(size, dim, dtype=self.dtype, device=self.device)
        scores = torch.empty(size, dtype=exact, device=self.device)
        records: list[tuple[int, _Kept | None]] = []
        for chunk in self._chunks(size):
            first_mask = self._masks
            keep = self.sums is not None and not self._recompute
            kept = self._forward(pairs.chunk(chunk), keep, vectors[chunk], scores[chunk])
            records.append((first_mask, kept if keep else None))
        if self.sums is not None:
            self._levels.append(records)
        return vectors, scores

    def backward(
        self,
        pairs: Pairs,
        grad_out: OutputGradients,
        grad_first: Float[Tensor, "R rows D"],
        grad_second: Float[Tensor, "R rows2 D"],
    ) -> None:
        """Adds the gradients of the last level that is left.

        Args:
            pairs: those given to `forward`, with the same values in their tables.
            grad_first, grad_second: gradients of the two tables, added to.
        """
        if not self._levels:
            raise RuntimeError("the graph of a chart goes back once; compute the chart again")
        records = self._levels.pop()
        chunks = self._chunks(len(pairs.first))
        for chunk, (first_mask, kept) in zip(chunks, records, strict=True):
            chunk_pairs = pairs.chunk(chunk)
            if kept is None:
                self._masks = first_mask
                kept = self._forward(chunk_pairs, True)
            grad = self._backward(kept, chunk_pairs, grad_out.chunk(chunk)).to(grad_first.dtype)
            for route, (grad_chunk_first, grad_chunk_second) in enumerate(grad):
                grad_first[route].index_add_(0, chunk_pairs.first, grad_chunk_first)
                grad_second[route].index_add_(0, chunk_pairs.second, grad_chunk_second)

    def _chunks(self, size: int) -> list[slice]:
        step = pairs_a_chunk(self.device.type, size)
        return [slice(i, min(i + step, size)) for i in range(0, size, step)]

    def _draw(self, *shapes: Sequence[int]) -> Sequence[Tensor | None]:
        """A mask of each shape; those kept for the way back and those not are drawn apart."""
        if self._dropout == 0.0:
            return [None] * len(shapes)
        self._masks += 1
        return keep_masks(self._dropout, self._seed + self._masks, shapes, self.dtype, self.device)

    def _forward(
        self,
        pairs: Pairs,
        keep: bool,
        vectors: Float[Tensor, "P D"] | None = None,
        scores: Float[Tensor, "P"] | None = None,
    ) -> _Kept:
        rows = pairs.gather().to(self.dtype)
        compared = 1 if self.siblings else 2
        kept_scores = [
            each.forward(x, keep)
            for each, x in zip(self._maps[:compared], rows[:compared], strict=True)
        ]
        if scores is not None:
            first, second = (out.to(scores.dtype) for out in self._mapped(kept_scores, pairs))
            torch.mul((first * second).sum(1), self._score_scale, out=scores)
        layers = []
        for weights in self._layers:
            layers.append(self._layer(weights, rows, pairs.side, keep))
            rows = layers[-1].out
        out, inverse_std = pair.add_norm(rows[0], rows[1].clone())
        if vectors is not None:
            vectors.copy_(out)
        return _Kept(layers, kept_scores, out, inverse_std)

    def _layer(
        self,
        weights: LayerWeights,
        x: Float[Tensor, "2 P D"],
        side: Int64[Tensor, "P"] | None,
        keep: bool,
    ) -> _KeptLayer:
        heads, rows = weights.num_heads, x.flatten(0, 1)
        weight_mask, attention_mask, ffn_mask = self._draw(
            (*x.shape[:2], heads, 2), rows.shape, rows.shape
        )
        packed = weights.project(x, side)
        mixed, weight = pair.pair_attention(packed, heads, weight_mask)
        flat = mixed.flatten(0, 1)
        y = weights.attention_out(flat)
        y = y if attention_mask is None else y.mul_(attention_mask)
        attended, attended_std = pair.add_norm(rows, y)
        y = weights.ffn_in(attended)
        [activation_mask] = self._draw(y.shape)
        after_gelu, gelu_slope = pair.gelu(y, keep, activation_mask)
        y = weights.ffn_out(after_gelu)
        y = y if ffn_mask is None else y.mul_(ffn_mask)
        out, out_std = pair.add_norm(attended, y)
        return _KeptLayer(
            x, packed, weight, flat, attended, attended_std, after_gelu, gelu_slope,
            out.view_as(x), out_std, weight_mask, attention_mask, ffn_mask,
        )  # fmt: skip

    def _mapped(self, kept: list[KeptScore], pairs: Pairs) -> list[Tensor]:
        """What the maps give for both vectors of each pair, (P, S)."""
        outputs = [of_map.out for of_map in kept]
        if self.siblings is not None:
            assert pairs.sibling is not None
            outputs.append(self.siblings.values.index_select(0, pairs.sibling))
        return outputs

    def _backward(
        self, kept: _Kept, pairs: Pairs, grad_out: OutputGradients
    ) -> Float[Tensor, "R 2 P D"]:
        """Gradient of the pairs' rows."""
        grad_vectors = grad_out.vectors().to(self.dtype)
        grad = pair.add_norm_backward(grad_vectors, kept.vectors, kept.inverse_std)
        grad = grad.unsqueeze(1).expand(-1, 2, -1, -1)
        for number in reversed(range(len(self._layers))):
            grad = self._layer_backward(number, kept.layers[number], grad, pairs.side)
        rows = kept.layers[0].x
        grad_scores = (grad_out.scores * self._score_scale).unsqueeze(1)
        first, second = (out.to(grad_scores.dtype) for out in self._mapped(kept.scores, pairs))
        grad_maps = grad_scores * second, grad_scores * first
        for number, of_map in enumerate(kept.scores):
            grad_map = grad_maps[number].to(self.dtype)
            grad[0, number] += self._maps[number].backward(of_map, rows[number], grad_map)
        if self.siblings is not None and pairs.sibling is not None:
            self.siblings.add(pairs.sibling, grad_maps[1])
        return grad

    def _layer_backward(
        self,
        number: int,
        kept: _KeptLayer,
        grad: Float[Tensor, "R 2 P D"],
        side: Int64[Tensor, "P"] | None,
    ) -> Float[Tensor, "R 2 P D"]:
        assert self.sums is not None
        assert kept.gelu_slope is not None
        weights, sums = self._layers[number], self.sums.layers[number]
        routes = len(grad)
        grad = pair.add_norm_backward(grad.flatten(1, 2), kept.out.flatten(0, 1), kept.out_std)
        y = grad if kept.ffn_mask is None else grad * kept.ffn_mask
        sums.ffn_out.add(y[0], kept.after_gelu)
        y = weights.ffn_out.grad_input(y).mul_(kept.gelu_slope)
        sums.ffn_in.add(y[0], kept.attended)
        grad = grad.add_(weights.ffn_in.grad_input(y))
        grad = pair.add_norm_backward(grad, kept.attended, kept.attended_std)
        y = grad if kept.attention_mask is None else grad * kept.attention_mask
        sums.attention_out.add(y[0], kept.mixed)
        y = weights.attention_out.grad_input(y).unflatten(1, (2, -1))
        y = pair.pair_attention_backward(y, kept.packed, kept.weight, kept.weight_mask)
        sums.add_projection(y[0], kept.x, side)
        return grad.add_(weights.grad_projected(y.flatten(1, 2))).view(
            routes, 2, -1, grad.shape[-1]
        )
