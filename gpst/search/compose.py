"""Constituents' vectors from their children's, for a search: many small batches without a graph."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gpst.layers.composition import Composition, LayerMaps, plain_norm


class _Layer:
    """Queries, keys and values in one product; roles and the scale of the logits are in it."""

    def __init__(self, maps: LayerMaps, role: Float[Tensor, "2 D"]):
        dim = role.shape[1]
        self.num_heads = maps.num_heads
        scale = torch.ones(3 * dim, 1, dtype=role.dtype, device=role.device)
        scale[:dim] = 1.0 / math.sqrt(dim // maps.num_heads)
        packed = torch.cat((maps.query_key.weight, maps.value.weight)) * scale
        self.packed = packed.T.expand(2, -1, -1)
        query_key = F.linear(role, maps.query_key.weight, maps.query_key.bias)
        value = maps.value.bias.expand(2, -1)
        self.bias = (torch.cat((query_key, value), 1) * scale.squeeze(1)).unsqueeze(1)
        self.attention_out, self.ffn_in, self.ffn_out = (
            maps.attention_out,
            maps.ffn_in,
            maps.ffn_out,
        )

    def __call__(self, x: Float[Tensor, "2 E D"]) -> Float[Tensor, "2 E D"]:
        packed = torch.baddbmm(self.bias, x, self.packed)
        query, key, value = packed.view(*x.shape[:2], 3, self.num_heads, -1).unbind(2)
        weight = (query * (key[0] - key[1])).sum(-1, keepdim=True).sigmoid_()
        mixed = torch.lerp(value[1], value[0], weight).view(x.shape)
        x = plain_norm(x + F.linear(mixed, *self.attention_out))
        return plain_norm(x + F.linear(F.gelu(F.linear(x, *self.ffn_in)), *self.ffn_out))


class Composer:
    """f_alpha and the norm after it, as the inside pass gives them for a cell with one split.

    Args:
        composition: adapters, parametrisations and hooks of its layers take part.
    """

    @torch.no_grad()
    def __init__(self, composition: Composition):
        maps = composition.linear_maps()
        self._layers = [_Layer(layer, maps.role) for layer in maps.layers]

    def __call__(
        self, left: Float[Tensor, "E D"], right: Float[Tensor, "E D"]
    ) -> Float[Tensor, "E D"]:
        pair = torch.stack((left, right))
        for layer in self._layers:
            pair = layer(pair)
        return plain_norm(plain_norm(pair[0] + pair[1]))
