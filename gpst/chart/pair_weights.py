"""The weights of a pair model in the type of computation, and sums of their gradients."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from gpst.kernels.product import add_product, pays, product
from gpst.layers.composition import Affine, LayerMaps, PairMaps


class Linear:
    """A linear layer without a graph."""

    def __init__(self, layer: Affine, dtype: torch.dtype):
        self.weight, self.bias = layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)

    def __call__(self, x: Float[Tensor, "P I"]) -> Float[Tensor, "P O"]:
        return product(x, self.weight, self.bias)

    def grad_input(self, grad: Float[Tensor, "R P O"]) -> Float[Tensor, "R P I"]:
        """Gradient of the input from that of the output."""
        return product(grad.flatten(0, 1), self.weight.T).unflatten(0, grad.shape[:2])


class LayerWeights:
    """Of a layer: queries, keys and values in one product, roles as rows of its bias."""

    def __init__(self, layer: LayerMaps, role: Tensor, dtype: torch.dtype):
        self.num_heads = layer.num_heads
        self.packed = torch.cat((layer.query_key.weight, layer.value.weight)).detach().to(dtype)
        with_role = F.linear(
            role.detach(), layer.query_key.weight.detach(), layer.query_key.bias.detach()
        )
        value = layer.value.bias.detach().expand(len(role), -1)
        self.biases = torch.cat((with_role.to(value.dtype), value), 1).to(dtype)
        """(roles, 3D)"""
        self.attention_out = Linear(layer.attention_out, dtype)
        self.ffn_in, self.ffn_out = Linear(layer.ffn_in, dtype), Linear(layer.ffn_out, dtype)

    def project(
        self, x: Float[Tensor, "2 P D"], side: Int64[Tensor, "P"] | None
    ) -> Float[Tensor, "2 P 3*D"]:
        """Queries, keys and values. Roles: 0 and 1, or 0 and 2 - side."""
        first = self.biases[0]
        second = self.biases[1] if side is None else self.biases.index_select(0, 2 - side)
        both = x.flatten(0, 1)
        if pays(both, self.packed):
            packed = product(both, self.packed).view(*x.shape[:-1], -1)
            packed[0] += first
            packed[1] += second
            return packed
        packed = x.new_empty(*x.shape[:-1], len(self.packed))
        for bias, rows, out in zip((first, second), x, packed, strict=True):
            torch.addmm(bias, rows, self.packed.T, out=out)
        return packed

    def grad_projected(self, grad: Float[Tensor, "R P D3"]) -> Float[Tensor, "R P D"]:
        """Gradient of the layer's input from that of the projections."""
        return product(grad.flatten(0, 1), self.packed.T).unflatten(0, grad.shape[:2])


class LinearSum:
    """Gradient of a linear layer, added up."""

    def __init__(self, layer: Affine, dtype: torch.dtype):
        self.weight = torch.zeros_like(layer.weight, dtype=dtype)
        self.bias = torch.zeros_like(layer.bias, dtype=dtype)

    def add(self, grad: Float[Tensor, "P O"], x: Float[Tensor, "P I"]) -> None:
        """Args: grad: gradient of the output. x: input."""
        add_product(self.weight, grad, x)
        add_rows(self.bias, grad)


class LayerSums:
    """Gradients of a layer, added up."""

    def __init__(self, layer: LayerMaps, num_roles: int, dtype: torch.dtype):
        dim, device = layer.value.weight.shape[1], layer.value.weight.device
        self.packed = torch.zeros(3 * dim, dim, dtype=dtype, device=device)
        self.biases = torch.zeros(num_roles, 3 * dim, dtype=dtype, device=device)
        self.attention_out = LinearSum(layer.attention_out, dtype)
        self.ffn_in, self.ffn_out = LinearSum(layer.ffn_in, dtype), LinearSum(layer.ffn_out, dtype)

    def add_projection(
        self,
        grad: Float[Tensor, "2 P D3"],
        x: Float[Tensor, "2 P D"],
        side: Int64[Tensor, "P"] | None,
    ) -> None:
        add_product(self.packed, grad.flatten(0, 1), x.flatten(0, 1))
        add_rows(self.biases[0], grad[0])
        if side is None:
            add_rows(self.biases[1], grad[1])
            return
        add_rows(self.biases[1], grad[1], side.to(grad.dtype))
        add_rows(self.biases[2], grad[1], (1 - side).to(grad.dtype))


class Sums:
    """Gradients of all that a pair model computes with."""

    def __init__(self, maps: PairMaps, dtype: torch.dtype):
        roles = len(maps.role)
        self.layers = [LayerSums(layer, roles, dtype) for layer in maps.layers]
        self.scores = [
            (LinearSum(dense, dtype), LinearSum(out, dtype)) for dense, out in maps.scores
        ]

    def gradients(self, maps: PairMaps) -> tuple[Tensor, ...]:
        """The gradients of `maps.tensors`."""
        grad: dict[int, Tensor] = {}

        def put(layer: Affine, weight: Tensor, bias: Tensor) -> None:
            grad[id(layer.weight)] = weight.to(layer.weight.dtype)
            grad[id(layer.bias)] = bias.to(layer.bias.dtype)

        role = maps.role.detach().to(self.layers[0].packed.dtype)
        grad_role = torch.zeros_like(role)
        for layer, sums in zip(maps.layers, self.layers, strict=True):
            dim = layer.value.weight.shape[1]
            roles, bias = sums.biases[:, : 2 * dim], sums.biases.sum(0)
            put(layer.query_key, sums.packed[: 2 * dim] + roles.T @ role, bias[: 2 * dim])
            put(layer.value, sums.packed[2 * dim :], bias[2 * dim :])
            grad_role += roles @ layer.query_key.weight.detach().to(role.dtype)
            for name in ("attention_out", "ffn_in", "ffn_out"):
                total: LinearSum = getattr(sums, name)
                put(getattr(layer, name), total.weight, total.bias)
        for side, side_totals in zip(maps.scores, self.scores, strict=True):
            for layer, total in zip(side, side_totals, strict=True):
                put(layer, total.weight, total.bias)
        grad[id(maps.role)] = grad_role.to(maps.role.dtype)
        return tuple(grad[id(tensor)] for tensor in maps.tensors)


def add_rows(
    total: Float[Tensor, "O"], grad: Float[Tensor, "P O"], weight: Float[Tensor, "P"] | None = None
) -> None:
    """total += the sum over the rows, weighted if so wished; a product, faster than `sum` here."""
    weight = grad.new_ones(len(grad)) if weight is None else weight
    if total.dtype == grad.dtype:
        total.addmv_(grad.T, weight)
    else:
        total += torch.mv(grad.T, weight)
