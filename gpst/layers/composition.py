"""Composition and decomposition of constituents and their scores (paper 3.1, equations 1-4).

f_alpha(l, r): inside vector of a constituent from its children's
f_beta(p, s):  outside vector of a child from its parent's outside and its sibling's inside
phi_alpha, phi_beta: how well the two go together, for the weights over splits or parents
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gpst.config import CompositionConfig
from gpst.kernels.packed_linear import PackedLinear
from gpst.kernels.product import Linear
from gpst.layers.transformer import at_least_fp32, init_std


def plain_norm(x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """LayerNorm_0: no scale, no shift."""
    return F.layer_norm(x, x.shape[-1:])


class Affine(NamedTuple):
    """The map x -> x W^T + b of a linear layer."""

    weight: Float[Tensor, "O I"]
    bias: Float[Tensor, "O"]


class LayerMaps(NamedTuple):
    """Of a `PairLayer`."""

    num_heads: int
    query_key: Affine
    value: Affine
    attention_out: Affine
    ffn_in: Affine
    ffn_out: Affine


class PairMaps(NamedTuple):
    """Everything that a `PairModel` computes with, as tensors of the graph."""

    layers: list[LayerMaps]
    scores: list[tuple[Affine, Affine]]
    """The MLP of each role's score."""
    role: Float[Tensor, "roles D"]
    score_scale: float
    dropout: float
    """0 in evaluation mode."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, each once."""
        affine = [each for layer in self.layers for each in layer[1:]]
        affine += [each for score in self.scores for each in score]
        return (self.role, *(tensor for each in affine for tensor in each))


def affine_of(layer: nn.Module) -> Affine:
    """What a linear layer computes: adapters, parametrisations, hooks, quantisation included.

    Those of a layer without any are its parameters; otherwise the layer is called on the axes.
    """
    changed = "forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks
    if type(layer) in _PLAIN and not changed and type(layer.weight.data) is Tensor:
        return Affine(layer.weight, layer.bias)  # type: ignore[arg-type]
    # Of a quantised layer it is a method.
    bias: Tensor = layer.bias() if callable(layer.bias) else layer.bias  # type: ignore[assignment]
    axes = torch.eye(layer.in_features + 1, layer.in_features, dtype=bias.dtype, device=bias.device)  # type: ignore[operator]
    images = layer(_LONG * axes)
    return Affine(((images[:-1] - images[-1]) / _LONG).T, images[-1])


_PLAIN = (nn.Linear, Linear, PackedLinear)
_LONG = 1024.0
"""Length of the axes: in half precision a bias would round small weights away beside it."""


class PairLayer(nn.Module):
    """A post-norm Transformer layer over two vectors; roles enter queries and keys only.

    Dropout falls on the attention weights, each by itself, the activations of the feed-forward
    layer and both residuals, as in the authors' code.
    """

    def __init__(self, dim: int, num_heads: int, ffn_dim: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_key = nn.Linear(dim, 2 * dim)
        self.value = nn.Linear(dim, dim)
        self.attention_out = nn.Linear(dim, dim)
        self.ffn_in = nn.Linear(dim, ffn_dim)
        self.ffn_out = nn.Linear(ffn_dim, dim)
        for layer in (self.query_key, self.value, self.attention_out, self.ffn_in, self.ffn_out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def _attend(self, x: Float[Tensor, "2 E D"], role: Tensor) -> Float[Tensor, "2 E D"]:
        """Attention between two vectors in closed form: a sigmoid of the difference of the keys.

        weight on vector 0 = sigmoid(q . (k_0 - k_1) / sqrt(head width))
        """
        query, key = self.query_key(x + role).unflatten(-1, (2, self.num_heads, -1)).unbind(2)
        value = self.value(x).unflatten(-1, (self.num_heads, -1))
        scale = 1.0 / math.sqrt(query.shape[-1])
        logit = (query * (key[0] - key[1])).sum(-1, keepdim=True) * scale
        weight = torch.sigmoid(logit)
        weight = self._drop(torch.cat((weight, 1.0 - weight), -1))
        mixed = weight[..., :1] * value[0] + weight[..., 1:] * value[1]
        return self.attention_out(mixed.flatten(2))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def linear_maps(self) -> LayerMaps:
        names = ("query_key", "value", "attention_out", "ffn_in", "ffn_out")
        return LayerMaps(self.num_heads, *(affine_of(getattr(self, name)) for name in names))

    def forward(
        self, x: Float[Tensor, "2 E D"], role: Float[Tensor, "2 R D"]
    ) -> Float[Tensor, "2 E D"]:
        """Args: x: the two vectors of each pair. role: their role embeddings; R is E or 1."""
        x = plain_norm(x + self._drop(self._attend(x, role)))
        ffn = self.ffn_out(self._drop(F.gelu(self.ffn_in(x))))
        return plain_norm(x + self._drop(ffn))


class PairScore(nn.Module):
    """phi(x, y) = MLP^x(x) . MLP^y(y) / sqrt(d_score), a map for each role; in fp32, without
    dropout."""

    parent: nn.Sequential
    left: nn.Sequential
    right: nn.Sequential

    def __init__(self, config: CompositionConfig, roles: tuple[str, ...]):
        super().__init__()
        self.scale = 1.0 / math.sqrt(config.score_dim)

        def mlp() -> nn.Sequential:
            first = nn.Linear(config.dim, config.dim)
            second = nn.Linear(config.dim, config.score_dim)
            for layer in (first, second):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            return nn.Sequential(first, nn.GELU(), second)

        for role in roles:
            self.add_module(role, mlp())

    @property
    def maps(self) -> list[nn.Sequential]:
        """The MLP of each role, in the order of the roles."""
        return list(self.children())  # type: ignore[arg-type]

    def compare(self, x: Float[Tensor, "E S"], y: Float[Tensor, "E S"]) -> Float[Tensor, "E"]:
        """phi from what the maps give."""
        return (at_least_fp32(x) * at_least_fp32(y)).sum(-1) * self.scale


class PairModel(nn.Module):
    """Layers over a pair, its roles, and the pair's score."""

    def __init__(self, config: CompositionConfig, num_layers: int, roles: tuple[str, ...]):
        super().__init__()
        self.layers = nn.ModuleList(
            PairLayer(config.dim, config.num_heads, config.ffn_dim, config.dropout)
            for _ in range(num_layers)
        )
        self.role = nn.Parameter(torch.randn(len(roles), config.dim) * 0.02)
        self.score = PairScore(config, roles)

    @property
    def pair_layers(self) -> list[PairLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    def linear_maps(self) -> PairMaps:
        """What the passes over the chart compute with; they do not call the layers themselves."""
        layers = [layer.linear_maps() for layer in self.pair_layers]
        scores = [(affine_of(mlp[0]), affine_of(mlp[-1])) for mlp in self.score.maps]
        dropout = self.pair_layers[0].dropout if self.training else 0.0
        return PairMaps(layers, scores, self.role, self.score.scale, dropout)

    def _mix(self, first: Tensor, second: Tensor, role: Tensor) -> Tensor:
        pair = torch.stack((first, second))
        for layer in self.layers:
            pair = layer(pair, role)
        return plain_norm(pair[0] + pair[1])


class Composition(PairModel):
    """f_alpha and phi_alpha; roles [LEFT], [RIGHT]."""

    def __init__(self, config: CompositionConfig):
        super().__init__(config, config.num_layers, ("left", "right"))

    def forward(
        self, left: Float[Tensor, "E D"], right: Float[Tensor, "E D"]
    ) -> tuple[Float[Tensor, "E D"], Float[Tensor, "E"]]:
        """Returns: (f_alpha(left, right), phi_alpha(left, right))."""
        of_left, of_right = self.score.maps
        return self.compose(left, right), self.score.compare(of_left(left), of_right(right))

    def compose(
        self, left: Float[Tensor, "E D"], right: Float[Tensor, "E D"]
    ) -> Float[Tensor, "E D"]:
        """f_alpha(left, right) alone."""
        return self._mix(left, right, self.role[:, None, :])


class Decomposition(PairModel):
    """f_beta and phi_beta; roles [PRT], and [LEFT] or [RIGHT] for the sibling.

    phi_beta(p, l) = MLP^p(p) . MLP^l(l) / sqrt(d_score), phi_beta(p, r) with MLP^r(r) (appendix).
    """

    def __init__(self, config: CompositionConfig):
        super().__init__(config, config.num_decomposition_layers, ("parent", "left", "right"))
        self.root = nn.Parameter(torch.randn(config.dim) * 0.02)
        """The outside vector of every root."""

    def forward(
        self,
        parent: Float[Tensor, "M D"],
        sibling: Float[Tensor, "M D"],
        side: Int64[Tensor, "M"],
    ) -> tuple[Float[Tensor, "M D"], Float[Tensor, "M"]]:
        """
        Args:
            side: 0 when the child is the left one (its sibling is [RIGHT]), 1 when the right one.
        Returns:
            (f_beta(parent, sibling), phi_beta(parent, sibling)).
        """
        role = torch.stack((self.role[0].expand_as(sibling), self.role[2 - side]))
        of_parent, of_left, of_right = self.score.maps
        mapped = torch.where(side[:, None] == 0, of_right(sibling), of_left(sibling))
        return self._mix(parent, sibling, role), self.score.compare(of_parent(parent), mapped)


class Scaling(nn.Module):
    """Linear maps between the generative width H and the composition width D.

    They start as transposes of each other, so that an up-scaled constituent starts as a mixture of
    its tokens' embeddings, as large as those beside which it stands.
    """

    def __init__(self, hidden_dim: int, dim: int):
        super().__init__()
        self.down = Linear(hidden_dim, dim)
        self.up = Linear(dim, hidden_dim)
        ratio = init_std(hidden_dim) * math.sqrt(hidden_dim / dim)
        with torch.no_grad():
            # In fp32, as torch has no QR decomposition of bf16 and fp16.
            weight = self.down.weight
            weight.copy_(nn.init.orthogonal_(torch.empty_like(weight, dtype=torch.float32)))
            self.up.weight.copy_(self.down.weight.T * ratio)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.bias)
