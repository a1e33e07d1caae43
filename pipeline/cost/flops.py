"""The arithmetic of a training step, counted from the sizes of a batch and of its chart.

The multiplications and additions of matrix products are counted, as torch.utils.flop_counter counts
them (2 for each pair): linear layers, attention and the two vocabulary heads, forward and backward.
Causal attention counts in full, and so does padding, since both are computed. Recomputed
activations, norms, softmaxes, chart layouts and the optimizer are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpst.batch import ContextBatch
from gpst.config import GPSTConfig, GPT2Config, ModelConfig
from gpst.model.parser import length_groups

_TRAINED = 3
"""Products of a layer: forward, gradient of the inputs, gradient of the weights."""


@dataclass(frozen=True)
class Flops:
    """Of one batch, by part of the model."""

    forward: dict[str, float]
    training: dict[str, float]
    """Forward and backward."""

    @property
    def total(self) -> float:
        """Of forward and backward, all parts."""
        return sum(self.training.values())


def batch_flops(config: ModelConfig, batch: ContextBatch, sizes: Mapping[str, int]) -> Flops:
    """The arithmetic of a batch.

    Args:
        sizes: `ModelOutput.sizes`; a GPT-2 needs none.
    """
    if isinstance(config, GPT2Config):
        forward, routes = _gpt2(config, batch), {}
    else:
        forward, routes = _gpst(config, batch, sizes)
    training = {name: _TRAINED * flops + routes.get(name, 0.0) for name, flops in forward.items()}
    return Flops(forward, training)


def _linear(rows: float, *widths: tuple[float, float]) -> float:
    """Linear layers of these (inputs, outputs) on a number of rows."""
    return 2.0 * rows * sum(inputs * outputs for inputs, outputs in widths)


def _causal_stack(rows: int, length: int, dim: int, ffn: int, num_layers: int) -> float:
    """Transformer blocks on (rows, length) positions: GPT-2's and those of the generator."""
    weights = _linear(rows * length, (dim, 3 * dim), (dim, dim), (dim, ffn), (ffn, dim))
    return num_layers * (weights + _attention(rows, length, dim))


def _attention(rows: int, length: int, dim: int) -> float:
    """Queries times keys, weights times values."""
    return 4.0 * rows * length * length * dim


def _gpt2(config: GPT2Config, batch: ContextBatch) -> dict[str, float]:
    dim, length = config.hidden_dim, int(batch.context_lengths.max())
    stack = _causal_stack(batch.num_contexts, length, dim, config.ffn_dim, config.num_layers)
    head = _linear(batch.num_tokens, (dim, config.vocab_size))
    return {"generator": stack, "vocabulary": head}


def _gpst(
    config: GPSTConfig, batch: ContextBatch, sizes: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, float]]:
    """(forward, addition of the second gradient route), by part."""
    hidden, tokens, dim = config.hidden_dim, batch.num_tokens, config.composition.dim
    actions = batch.counts.actions
    type_length = int(batch.context_actions.max())
    token_length = int(batch.context_lengths.max())
    chart, num_edges = config.composition, sizes["edges"]
    composition = _pairs(config, num_edges, chart.num_layers)
    messages = 2 * num_edges  # each edge sends one to either child
    decomposition = _pairs(config, messages, chart.num_decomposition_layers)
    # phi_alpha takes both vectors of a pair; phi_beta the parent of a message, and each cell once
    # as a left and once as a right sibling.
    phi_alpha = _scores(config, 2 * num_edges)
    phi_beta = _scores(config, messages + 2 * sizes["cells"]) if num_edges else 0.0
    # The roles' queries and keys are computed once for all pairs.
    left_right = chart.num_layers * _linear(2, (dim, 2 * dim))
    parent_left_right = chart.num_decomposition_layers * _linear(3, (dim, 2 * dim))
    generator = (
        _causal_stack(
            batch.num_contexts, type_length, hidden, config.ffn_dim, config.num_type_layers
        )
        + _causal_stack(
            batch.num_contexts, token_length, hidden, config.ffn_dim, config.num_token_layers
        )
        + _linear(actions, (hidden, hidden), (hidden, 2))
        + _linear(tokens, (hidden, config.token_head_width), (config.token_head_width, hidden))
    )
    scaling = _linear(tokens, (hidden, dim))
    if config.surrogate:
        scaling += _linear(actions, (dim, hidden))
    forward = {
        "parser": _parser(config, batch),
        "scaling": scaling,
        "inside": composition + phi_alpha + left_right,
        "outside": decomposition + phi_beta + parent_left_right,
        "autoencoding_head": _linear(tokens, (dim, 4 * dim), (4 * dim, hidden)),
        "generator": generator,
        "vocabulary": 2 * _linear(tokens, (hidden, config.vocab_size)),
    }
    # With two routes f_alpha has one more gradient of its inputs (gpst/chart/inside.py), but for
    # pairs of tokens, which take the sum of both.
    two_routes = config.gradient_stop and config.surrogate
    second = _pairs(config, num_edges - sizes["edges_over_tokens"], chart.num_layers)
    return forward, {"inside": second} if two_routes else {}


def _pairs(config: GPSTConfig, pairs: int, num_layers: int) -> float:
    """Layers of a composition or decomposition model on pairs of vectors."""
    dim, ffn = config.composition.dim, config.composition.ffn_dim
    layer = _linear(2 * pairs, (dim, 2 * dim), (dim, dim), (dim, dim), (dim, ffn), (ffn, dim))
    return num_layers * layer


def _scores(config: GPSTConfig, vectors: int) -> float:
    """The maps whose products are phi."""
    dim = config.composition.dim
    return _linear(vectors, (dim, dim), (dim, config.composition.score_dim))


def _parser(config: GPSTConfig, batch: ContextBatch) -> float:
    dim, ffn = config.parser.dim, config.parser.ffn_dim
    tokens, layer = batch.num_tokens, 0.0
    for group in length_groups(batch.sentence_lengths):
        rows, longest = len(group), int(np.max(batch.sentence_lengths[group]))
        layer += _linear(rows * longest, (dim, 3 * dim), (dim, dim), (dim, 2 * ffn), (ffn, dim))
        layer += _attention(rows, longest, dim)
    score = config.parser.score_width
    return config.parser.num_layers * layer + _linear(tokens, (2 * dim, score), (score, 1))
