"""Gradients of a pair model's weights, each by one product over all layers and pairs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.layers.composition import Affine, PairMaps


class Branches(NamedTuple):
    """Inputs of all linear layers and the gradients of their outputs; L layers, M = 2P rows."""

    x: Float[Tensor, "L M D"]
    packed: Float[Tensor, "L M D3"]
    mixed: Float[Tensor, "L M D"]
    attention: Float[Tensor, "L M D"]
    attended: Float[Tensor, "L M D"]
    inner: Float[Tensor, "L M F"]
    ffn: Float[Tensor, "L M F"]
    ffn_out: Float[Tensor, "L M D"]
    map_in: Float[Tensor, "K P D"]
    map_dense: Float[Tensor, "K P D"]
    map_gelu: Float[Tensor, "K P D"]
    map_out: Float[Tensor, "K P S"]


def pair_gradients(
    maps: PairMaps,
    branches: Branches,
    side: Int64[Tensor, "P"] | None,
    siblings: list[tuple[Affine, Affine]],
) -> tuple[Tensor, ...]:
    """The gradients of `maps.tensors`.

    Args:
        side: of the child of each message; None for the inside pass.
        siblings: gradients of the score maps that are not in `branches`.
    """
    grad: dict[int, Tensor] = {}

    def put(layer: Affine, weight: Tensor, bias: Tensor) -> None:
        grad[id(layer.weight)] = weight.to(layer.weight.dtype)
        grad[id(layer.bias)] = bias.to(layer.bias.dtype)

    of_packed = _products(branches.packed, branches.x)
    biases = _role_sums(branches.packed, side)
    dim = branches.x.shape[2]
    query_keys = torch.stack([layer.query_key.weight.detach() for layer in maps.layers])
    role = maps.role.detach().to(of_packed.dtype)
    by_role = biases[:, :, : 2 * dim]
    of_query_key = of_packed[:, : 2 * dim] + by_role.transpose(1, 2) @ role
    grad_role = (by_role @ query_keys.to(by_role.dtype)).sum(0)
    all_biases = biases.sum(1)
    pieces = {
        "attention_out": (branches.attention, branches.mixed),
        "ffn_in": (branches.ffn, branches.attended),
        "ffn_out": (branches.ffn_out, branches.inner),
    }
    totals = {name: (_products(g, x), g.sum(1)) for name, (g, x) in pieces.items()}
    for number, layer in enumerate(maps.layers):
        bias = all_biases[number]
        put(layer.query_key, of_query_key[number], bias[: 2 * dim])
        put(layer.value, of_packed[number, 2 * dim :], bias[2 * dim :])
        for name, (weights, sums) in totals.items():
            put(getattr(layer, name), weights[number], sums[number])
    dense, dense_bias = _products(branches.map_dense, branches.map_in), branches.map_dense.sum(1)
    out, out_bias = _products(branches.map_out, branches.map_gelu), branches.map_out.sum(1)
    for number, (first, second) in enumerate(maps.scores):
        if number < len(dense):
            put(first, dense[number], dense_bias[number])
            put(second, out[number], out_bias[number])
        else:
            of_first, of_second = siblings[number - len(dense)]
            put(first, *of_first)
            put(second, *of_second)
    grad[id(maps.role)] = grad_role.to(maps.role.dtype)
    return tuple(grad[id(tensor)] for tensor in maps.tensors)


def _products(grad: Float[Tensor, "L M O"], x: Float[Tensor, "L M I"]) -> Float[Tensor, "L O I"]:
    """Gradients of the weights of all layers."""
    return torch.bmm(grad.transpose(1, 2), x)


def _role_sums(
    packed: Float[Tensor, "L M D3"], side: Int64[Tensor, "P"] | None
) -> Float[Tensor, "L roles D3"]:
    """Sums over the rows of each role: vectors 0 and 1, or 0, and 1 by the sibling's side."""
    by_vector = packed.unflatten(1, (-1, 2))
    if side is None:
        return by_vector.sum(1)
    right = side.to(packed.dtype)
    of_role = torch.stack((right, 1 - right)).expand(len(packed), -1, -1)
    second = torch.bmm(of_role, by_vector[:, :, 1])
    return torch.cat((by_vector[:, :, 0].sum(1, keepdim=True), second), 1)
