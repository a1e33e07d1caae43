"""GPST as recursions over spans, one sentence and one pair of vectors at a time, in float64.

Independent of gpst.chart: the chart comes from chart_oracle, attention is the general softmax form,
trees are decoded by recursion, and the two gradient routes are the two-backward formulation (the
auto-regression loss on a forward pass with constant weights, all other losses on one with live
weights). Shares with the model only its parameters and the standard layers of parser and generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import chart_oracle
import torch
import torch.nn.functional as F
from chart_oracle import cuts
from known_trees import splits_of
from torch import Tensor

from gpst.layers.composition import PairLayer
from gpst.model.gpst import GPSTModel
from gpst.tree import Tree

Span = tuple[int, int]


def norm(x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + 1e-5)


class Dropped(NamedTuple):
    """What dropout multiplies the values of one layer with, for the two vectors of a pair."""

    weights: Tensor
    """(2 queries, heads, 2 keys)"""
    attended: Tensor
    """(2, D)"""
    inner: Tensor
    """(2, feed-forward width)"""
    ffn: Tensor
    """(2, D)"""

    @staticmethod
    def nothing(layer: PairLayer) -> Dropped:
        like = layer.value.weight
        dim, inner = like.shape[0], layer.ffn_in.out_features
        shapes = (2, layer.num_heads, 2), (2, dim), (2, inner), (2, dim)
        return Dropped(*(like.new_ones(shape) for shape in shapes))


def pair_layer(
    layer: PairLayer, x: list[Tensor], roles: list[Tensor], dropped: Dropped | None = None
) -> list[Tensor]:
    """One layer over two vectors with ordinary attention over both."""
    dropped = dropped or Dropped.nothing(layer)
    dim, heads = len(x[0]), layer.num_heads
    width = dim // heads
    query_weight, key_weight = layer.query_key.weight.split(dim)
    query_bias, key_bias = layer.query_key.bias.split(dim)
    queries = [query_weight @ (v + r) + query_bias for v, r in zip(x, roles, strict=True)]
    keys = [key_weight @ (v + r) + key_bias for v, r in zip(x, roles, strict=True)]
    values = [layer.value.weight @ v + layer.value.bias for v in x]
    result = []
    for i in range(2):
        parts = []
        for h in range(heads):
            own = slice(h * width, (h + 1) * width)
            logits = torch.stack([queries[i][own] @ keys[j][own] for j in range(2)])
            weights = torch.softmax(logits / math.sqrt(width), 0) * dropped.weights[i, h]
            parts.append(sum(weights[j] * values[j][own] for j in range(2)))
        attended = layer.attention_out.weight @ torch.cat(parts) + layer.attention_out.bias
        y = norm(x[i] + attended * dropped.attended[i])
        inner = F.gelu(layer.ffn_in.weight @ y + layer.ffn_in.bias) * dropped.inner[i]
        ffn = layer.ffn_out.weight @ inner + layer.ffn_out.bias
        result.append(norm(y + ffn * dropped.ffn[i]))
    return result


def pair(
    layers: list[PairLayer],
    x: list[Tensor],
    roles: list[Tensor],
    dropped: list[Dropped] | None = None,
) -> Tensor:
    for number, layer in enumerate(layers):
        x = pair_layer(layer, x, roles, dropped[number] if dropped else None)
    return norm(x[0] + x[1])


def pair_score(x: Tensor, y: Tensor) -> Tensor:
    """Of two vectors, each through its own map."""
    return x @ y / math.sqrt(len(x))


def turned(x: Tensor) -> Tensor:
    """Rotary positions of one head, (T, d): pairs of features as complex numbers."""
    rate = 10000.0 ** (-torch.arange(0, x.shape[1], 2, dtype=torch.float32) / x.shape[1])
    # The angles, not their cosines, are fp32 in the model.
    angle = torch.outer(torch.arange(len(x), dtype=torch.float32), rate)
    turn = torch.complex(angle.cos().to(x.dtype), angle.sin().to(x.dtype))
    return torch.view_as_real(torch.view_as_complex(x.reshape(len(x), -1, 2)) * turn).flatten(1)


def parser_layer(layer: Any, x: Tensor) -> Tensor:
    """One layer of the parser over one sentence, (T, D)."""
    width = x.shape[1] // layer.num_heads
    parts = []
    packed = layer.query_key_value(layer.attention_norm(x)).split(x.shape[1], 1)
    for query, key, value in zip(*(p.split(width, 1) for p in packed), strict=True):
        weights = torch.softmax(turned(query) @ turned(key).T / math.sqrt(width), 1)
        parts.append(weights @ value)
    x = x + layer.attention_out(torch.cat(parts, 1))
    gate, up = layer.gate_and_value(layer.ffn_norm(x)).chunk(2, -1)
    return x + layer.ffn_out(F.silu(gate) * up)


@dataclass
class SlowSentence:
    """Chart, inside and outside of one sentence."""

    model: GPSTModel
    leaves: Tensor
    boundary_scores: list[float]
    live: bool
    temperature: float = 1.0
    atoms: list[Span] | None = None
    may_cross: bool = False
    chart: dict[Span, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        config = self.model.config.composition
        self.chart = chart_oracle.chart(
            self.boundary_scores, config.window, config.schedule, self.atoms, self.may_cross
        )
        self.inside = cache(self._inside)
        self.height = cache(self._height)
        self.weights = cache(self._weights)
        self.outside = cache(self._outside)

    @property
    def root(self) -> Span:
        return 0, len(self.leaves) - 1

    def _children(self, span: Span, k: int) -> tuple[Span, Span]:
        return (span[0], k), (k + 1, span[1])

    def split_scores(self, span: Span) -> Tensor:
        children = [self._children(span, k) for k in self.chart[span]]
        score = self.model.composition.score
        return torch.stack(
            [
                pair_score(score.left(self.inside(a)), score.right(self.inside(b)))
                for a, b in children
            ]
        )

    def _weights(self, span: Span) -> Tensor:
        weights = torch.softmax(self.split_scores(span) / self.temperature, 0)
        return weights if self.live else weights.detach()

    def _inside(self, span: Span) -> Tensor:
        if span[0] == span[1]:
            return self.leaves[span[0]]
        composition = self.model.composition
        mixed = torch.zeros_like(self.leaves[0])
        for k, a in zip(self.chart[span], self.weights(span), strict=True):
            left, right = self._children(span, k)
            vectors = [self.inside(left), self.inside(right)]
            mixed = mixed + a * pair(list(composition.layers), vectors, list(composition.role))
        return norm(mixed)

    def _height(self, span: Span) -> Tensor:
        if span[0] == span[1]:
            return torch.zeros((), dtype=self.leaves.dtype)
        total = torch.zeros((), dtype=self.leaves.dtype)
        for k, a in zip(self.chart[span], self.weights(span), strict=True):
            left, right = self._children(span, k)
            total = total + a * (1 + torch.maximum(self.height(left), self.height(right)))
        return total

    def _outside(self, span: Span) -> Tensor:
        decomposition = self.model.decomposition
        if span == self.root:
            return decomposition.root
        parent_role, left_role, right_role = decomposition.role
        messages, scores = [], []
        for parent, splits in self.chart.items():
            for k in splits:
                left, right = self._children(parent, k)
                if span not in (left, right):
                    continue
                score = decomposition.score
                if span == left:
                    sibling, role, sibling_map = right, right_role, score.right
                else:
                    sibling, role, sibling_map = left, left_role, score.left
                vectors = [self.outside(parent), self.inside(sibling)]
                messages.append(pair(list(decomposition.layers), vectors, [parent_role, role]))
                scores.append(pair_score(score.parent(vectors[0]), sibling_map(vectors[1])))
        weights = torch.softmax(torch.stack(scores), 0)
        return sum(w * m for w, m in zip(weights, messages, strict=True))

    def tree(self) -> Tree:
        split_of = {}
        for span, splits in self.chart.items():
            scores = dict(zip(splits, self.split_scores(span).detach().tolist(), strict=True))
            allowed = [k for k in splits if not any(cuts(span, k, a) for a in self.atoms or [])]
            # A cell that crosses an atom is in no tree.
            split_of[span] = max(allowed or splits, key=lambda k: (scores[k], -k))
        return Tree.from_splits(len(self.leaves), split_of)


@dataclass
class SlowLosses:
    """Sums of all losses over a batch given as contexts[context][sentence][token]."""

    model: GPSTModel
    contexts: list[list[list[int]]]
    temperature: float = 1.0

    def sentence(self, tokens: list[int], live: bool) -> tuple[SlowSentence, Tensor]:
        scores = self.boundary_scores(tokens)
        embedded = self.model.embedding(torch.tensor(tokens))
        leaves = self.model.scaling.down(embedded)
        order = scores.detach().tolist()
        return SlowSentence(self.model, leaves, order, live, self.temperature), scores

    def boundary_scores(self, tokens: list[int]) -> Tensor:
        parser, ids = self.model.parser, torch.tensor(tokens)
        x = parser.embedding(ids)
        for layer in parser.layers:
            x = parser_layer(layer, x)
        x = parser.norm(x)
        pairs = torch.cat((x[:-1], x[1:]), 1)
        return parser.score(F.gelu(parser.dense(pairs)))[:, 0]

    def composition_side(self) -> dict[str, Tensor]:
        """Auto-encoding, parser and height losses, live weights."""
        model = self.model
        sums = {
            k: torch.zeros((), dtype=torch.float64) for k in ("autoencoding", "parser", "height")
        }
        for tokens in (s for context in self.contexts for s in context):
            slow, scores = self.sentence(tokens, live=True)
            for t, token in enumerate(tokens):
                features = model.autoencoding_head(slow.outside((t, t)))
                logits = model.embedding.weight @ features
                sums["autoencoding"] = sums["autoencoding"] - torch.log_softmax(logits, 0)[token]
            for (i, j), k in splits_of(slow.tree()):
                log_p = torch.log_softmax(scores[i:j], 0)[k - i]
                sums["parser"] = sums["parser"] - log_p
            excess = F.relu(slow.height(slow.root) - model.config.composition.max_height)
            sums["height"] = sums["height"] + excess / len(tokens)
        return sums

    def auto_regression(self, live: bool = False) -> dict[str, Tensor]:
        """Token and type losses; weights constant unless `live` (no gradient stop)."""
        model, generator = self.model, self.model.generator
        token_sum = type_sum = torch.zeros((), dtype=torch.float64)
        for context in self.contexts:
            inputs, actions, written = [model.embedding.weight[model.config.bos_token_id]], [], []
            words = [0]
            for tokens in context:
                slow, _ = self.sentence(tokens, live)
                for span in slow.tree().spans:
                    leaf = span[0] == span[1]
                    if leaf:
                        inputs.append(model.embedding.weight[tokens[span[0]]])
                        written.append(tokens[span[0]])
                    elif generator.comp_embedding is not None:
                        inputs.append(generator.comp_embedding)
                    else:
                        inputs.append(model.scaling.up(slow.inside(span)))
                    if model.config.last_word and not leaf:
                        inputs[-1] = inputs[-1] + model.embedding.weight[tokens[span[1]]]
                    words.append(words[-1] + int(leaf))
                    actions.append(0 if leaf else 1)
            x = torch.stack(inputs[:-1]) + generator.position.weight[words[:-1]]
            hidden = generator.type_layers(x[None])[0]
            logits = generator.type_logits(hidden)
            type_sum = type_sum + F.cross_entropy(logits, torch.tensor(actions), reduction="sum")
            gen = [t for t, action in enumerate(actions) if action == 0]
            features = generator.token_features(generator.token_layers(hidden[gen][None])[0])
            token_logits = features @ model.embedding.weight.T
            target = torch.tensor(written)
            token_sum = token_sum + F.cross_entropy(token_logits, target, reduction="sum")
        return {"token": token_sum, "type": type_sum}


def assert_close(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert abs(actual[name].item() - value.item()) <= 1e-10 * max(1, abs(value.item())), name
