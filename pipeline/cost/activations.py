"""The memory that a forward pass saves for the backward pass, from the sizes of a batch.

Every term is a tensor that autograd, or a Function of ours, saves at some line of gpst/.
tests/pipeline/cost/test_memory.py counts them on real models, each storage once: the estimate is
within 5%, with and without recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpst.batch import ContextBatch
from gpst.chart.layout import ChartLayout, build_layout
from gpst.config import GPSTConfig, GPT2Config, ModelConfig
from gpst.model.losses import chunk_rows
from gpst.model.parser import length_groups
from pipeline.cost.chart_activations import EXACT, INDEX, chart_bytes

ASSUMED_SENTENCE_TOKENS = 24
"""Tokens of a sentence where the data are not known."""
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Of a number in the forward and backward passes."""


@dataclass(frozen=True)
class Activations:
    """Bytes of one micro-batch on a rank."""

    saved: int
    """Saved from the end of the forward pass until the backward pass has used them."""
    recomputed: int
    """The largest piece that the backward pass recomputes."""
    freed: int
    """Of what is saved, what is used and freed before that piece is recomputed."""
    tables: int
    """Gradients of the embedding, which the vocabulary heads compute in the forward pass."""
    logits: int
    """A chunk of the vocabulary heads, with its gradient."""

    @property
    def total(self) -> int:
        """At most: the logits are freed before the recomputation."""
        return self.saved + self.tables + max(self.recomputed - self.freed, self.logits)


@dataclass(frozen=True)
class _Sizes:
    """Bytes of a number, and of an element of a dropout mask (0 without dropout)."""

    number: int
    mask: int

    def masked(self, rate: float) -> int:
        """Of an element's mask in PyTorch's dropout."""
        return self.mask if rate else 0


def assumed_batch(num_contexts: int, context_tokens: int) -> ContextBatch:
    """Full contexts of sentences of `ASSUMED_SENTENCE_TOKENS`."""
    lengths = [ASSUMED_SENTENCE_TOKENS] * (context_tokens // ASSUMED_SENTENCE_TOKENS)
    if rest := context_tokens - sum(lengths):
        lengths.append(rest)
    return ContextBatch(
        torch.zeros(num_contexts * context_tokens, dtype=torch.int64),
        np.cumsum(lengths * num_contexts, dtype=np.int64),
        np.cumsum([len(lengths)] * num_contexts, dtype=np.int64),
    )


def activation_bytes(
    config: ModelConfig,
    batch: ContextBatch,
    precision: str,
    activation_checkpointing: tuple[str, ...] = (),
    device_type: str = "cuda",
) -> Activations:
    """What a micro-batch takes on a rank.

    Args:
        batch: on the CPU; only its sizes matter.
        precision: fp32, bf16 or fp16.
        activation_checkpointing: parts that are recomputed (composition, generator): only the
            inputs of their blocks and the vectors of pairs are saved.
        device_type: cuda or cpu; on the CPU chunks of logits and pairs are smaller, and masks are
            numbers instead of bytes.
    """
    number = BYTES[precision]
    # On the CPU a mask has the type of its factor.
    sizes = _Sizes(number, number if device_type == "cpu" else 1)
    if isinstance(config, GPT2Config):
        saved, again = _gpt2(config, batch, sizes, activation_checkpointing)
        heads, freed = 1, 0.0
    else:
        saved, again, freed = _gpst(config, batch, sizes, activation_checkpointing, device_type)
        heads = 2
    hidden, vocab = config.hidden_dim, config.vocab_size
    # The last features, and their gradients, which the forward pass computes.
    saved += (1 + heads) * number * batch.num_tokens * hidden
    rows = min(batch.num_tokens, chunk_rows(vocab, device_type))
    of_logit = number if device_type == "cuda" or number == 4 else 4 + 2 * number
    logits, of_table = rows * vocab * of_logit, EXACT
    if device_type == "cuda" and rows == batch.num_tokens:
        of_table = number  # one product, not a sum of them
    elif device_type == "cuda":
        logits += number * vocab * hidden  # the product that is added
    tables = heads * of_table * vocab * hidden
    return Activations(int(saved), int(again), int(freed), int(tables), int(logits))


def _stack(
    positions: int, config: ModelConfig, num_layers: int, sizes: _Sizes, again: bool
) -> tuple[float, float]:
    """(saved, recomputed) of Transformer blocks (layers/transformer.py), their inputs included.

    A block saves for a position: its input and the sum before the feed-forward layer, each also
    normed; queries, keys and values; the attention's output; GELU's derivative and value, or its
    input; the masks of two residuals.
    """
    hidden, number = config.hidden_dim, sizes.number
    block = positions * (
        number * (8 * hidden + 2 * config.ffn_dim)
        + 2 * sizes.masked(config.dropout) * hidden
        + EXACT * (4 + config.num_heads)  # of two norms, and of the attention's softmax
    )
    if not again:
        return num_layers * block, 0
    return num_layers * number * positions * hidden, block


def _gpt2(
    config: GPT2Config,
    batch: ContextBatch,
    sizes: _Sizes,
    activation_checkpointing: tuple[str, ...],
) -> tuple[float, float]:
    positions = batch.num_contexts * int(batch.context_lengths.max())
    again = "generator" in activation_checkpointing
    saved, made = _stack(positions, config, config.num_layers, sizes, again)
    # The last norm's input; the mask of the embeddings.
    hidden = config.hidden_dim
    saved += positions * hidden * (sizes.number + sizes.masked(config.dropout))
    return saved + positions * (2 * EXACT + 2 * INDEX), made


def _gpst(
    config: GPSTConfig,
    batch: ContextBatch,
    sizes: _Sizes,
    activation_checkpointing: tuple[str, ...],
    device_type: str,
) -> tuple[float, float, float]:
    """(saved, recomputed, freed before)."""
    chart = config.composition
    scores = np.random.default_rng(0).random(batch.num_tokens, np.float32)
    layout = build_layout(scores, batch.sentence_ends, chart.window, chart.schedule)
    recompute = "composition" in activation_checkpointing
    saved, made = chart_bytes(chart, layout, sizes.number, recompute, device_type)
    generator, block = _generator(config, batch, sizes, "generator" in activation_checkpointing)
    saved += generator + _parser(config, batch, sizes, device_type)
    tokens, dim, hidden = batch.num_tokens, chart.dim, config.hidden_dim
    # The embedded tokens, of which the scaled ones are made; the head of the auto-encoder.
    saved += sizes.number * tokens * (hidden + dim)
    saved += tokens * _head(4 * dim, config, sizes)
    saved += _integers(layout, batch)
    if block > max(0, made - generator):
        return saved, block, 0
    return saved, made, generator  # the chart goes back after the generator


def _integers(layout: ChartLayout, batch: ContextBatch) -> float:
    """The chart's layout, trees, positions of tokens and actions; the parser's scores."""
    tokens, actions, cells = batch.num_tokens, batch.counts.actions, layout.num_cells
    return (
        layout.integers.nbytes
        + INDEX * (9 * actions + 12 * tokens + 3 * cells)
        + EXACT * (4 * tokens + 3 * cells)
    )


def _head(width: int, config: GPSTConfig, sizes: _Sizes) -> float:
    """Of a prediction head, for a row: GELU's derivative and value, and the mask."""
    return width * (2 * sizes.number + sizes.masked(config.head_dropout))


def _generator(
    config: GPSTConfig, batch: ContextBatch, sizes: _Sizes, again: bool
) -> tuple[float, float]:
    tokens, actions, hidden = batch.num_tokens, batch.counts.actions, config.hidden_dim
    type_length = int(batch.context_actions.max())
    token_length = int(batch.context_lengths.max())
    types, block = _stack(
        batch.num_contexts * type_length, config, config.num_type_layers, sizes, again
    )
    words, other_block = _stack(
        batch.num_contexts * token_length, config, config.num_token_layers, sizes, again
    )
    # A norm's input and output before either head; the masks of the type and token layers' inputs.
    normed = 2 * sizes.number * hidden + 2 * EXACT
    inputs = (actions + tokens) * sizes.masked(config.dropout) * hidden
    heads = actions * (normed + _head(hidden, config, sizes) + 6 * EXACT)
    heads += tokens * (normed + _head(config.token_head_width, config, sizes))
    surrogates = actions * sizes.number * config.composition.dim if config.surrogate else 0
    return types + words + inputs + heads + surrogates, max(block, other_block)


def _parser(config: GPSTConfig, batch: ContextBatch, sizes: _Sizes, device_type: str) -> float:
    """Of the parser (model/parser.py), whose layers pad sentences to groups of like length."""
    parser, tokens, number = config.parser, batch.num_tokens, sizes.number
    lengths = batch.sentence_lengths
    padded = sum(len(group) * int(lengths[group].max()) for group in length_groups(lengths))
    # A norm on the CPU also saves the normalised input.
    norm = number * (3 if device_type == "cpu" else 2) * parser.dim + EXACT
    layer = padded * (2 * norm + number * (parser.dim + 4 * parser.ffn_dim))
    layer += padded * (number * 4 * parser.dim + EXACT * (parser.num_heads + 1))
    width = parser.score_width
    score = number * 2 * (parser.dim + width) + sizes.masked(parser.dropout) * width
    turns = padded * number * parser.dim / parser.num_heads  # of rotary positions
    return parser.num_layers * layer + turns + tokens * (norm + score)
