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
from gpst.chart.pair_pass import pairs_a_chunk
from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ModelConfig
from gpst.model.losses import chunk_rows
from gpst.model.parser import length_groups

ASSUMED_SENTENCE_TOKENS = 24
"""Tokens of a sentence where the data are not known."""
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Of a number in the forward and backward passes."""
_EXACT, _INDEX = 4, 8
"""Bytes of a number that is fp32 in any precision, and of an index."""
_MAPS_ALPHA, _MAPS_BETA, _SIBLINGS = 2, 1, 2
"""Score maps of a pair in the inside and in the outside pass, and of a cell."""


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
    logits = rows * vocab * of_logit
    tables = heads * _EXACT * vocab * hidden
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
        + _EXACT * (4 + config.num_heads)  # of two norms, and of the attention's softmax
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
    return saved + positions * (2 * _EXACT + 2 * _INDEX), made


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
    saved, made = _chart(chart, layout, sizes.number, recompute, device_type)
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
        + _INDEX * (9 * actions + 12 * tokens + 3 * cells)
        + _EXACT * (4 * tokens + 3 * cells)
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
    normed = 2 * sizes.number * hidden + 2 * _EXACT
    inputs = (actions + tokens) * sizes.masked(config.dropout) * hidden
    heads = actions * (normed + _head(hidden, config, sizes) + 6 * _EXACT)
    heads += tokens * (normed + _head(config.token_head_width, config, sizes))
    surrogates = actions * sizes.number * config.composition.dim if config.surrogate else 0
    return types + words + inputs + heads + surrogates, max(block, other_block)


def _chart(
    chart: CompositionConfig, layout: ChartLayout, number: int, recompute: bool, device_type: str
) -> tuple[float, float]:
    """(saved, recomputed) of the inside and outside passes (gpst/chart)."""
    edges, cells, dim = len(layout.parent), layout.num_cells, chart.dim
    messages = len(layout.message_child)
    fused = device_type != "cpu"
    inside = _pair(chart, chart.num_layers, _MAPS_ALPHA, number, fused)
    outside = _pair(chart, chart.num_decomposition_layers, _MAPS_BETA, number, fused)
    siblings = _SIBLINGS * 2 * number * dim
    # Both tables of vectors, those of the pairs, the maps' outputs for siblings.
    saved = number * (2 * cells * dim + (edges + messages) * dim)
    saved += _SIBLINGS * number * cells * chart.score_dim
    saved += _EXACT * (2 * edges + messages + 3 * cells) + _INDEX * messages
    saved += _pair_weights(chart, chart.num_layers, _MAPS_ALPHA, number)
    saved += _pair_weights(chart, chart.num_decomposition_layers, _MAPS_BETA + _SIBLINGS, number)
    levels = [level.last_edge - level.first_edge for level in layout.levels]
    largest = max(levels, default=0)
    if fused:
        kept, made = _whole_levels(
            chart, layout, largest, number, (edges * inside, messages * outside)
        )
        saved += cells * siblings
        return (saved, made) if recompute else (saved + kept, 0)
    if not recompute:
        return saved + edges * inside + messages * outside + cells * siblings, 0
    limit = pairs_a_chunk(device_type, messages)
    outer = [level.messages.stop - level.messages.start for level in layout.outside_levels]
    pieces = (
        min(largest, limit) * inside,
        min(max(outer, default=0), limit) * outside,
        min(cells, limit) * siblings / _SIBLINGS,
    )
    return saved, max(pieces)


def _whole_levels(
    chart: CompositionConfig,
    layout: ChartLayout,
    largest: int,
    number: int,
    passes: tuple[float, float],
) -> tuple[float, float]:
    """(kept, at most at once on the way back) of both passes by the kernels of whole levels.

    Args:
        largest: pairs of a level of the inside pass. passes: bytes that each pass keeps of pairs.
    """
    dim, cells = chart.dim, layout.num_cells

    def way_back(num_layers: int, routes: int) -> float:
        """Bytes of a pair: what attention and GELU give, the gradients of both branches of a layer,
        and those of a pair's rows by each route."""
        return 2 * number * (num_layers * (3 * dim + chart.ffn_dim) + routes * dim)

    # Both routes of gradients of the largest level have rooms beside what is kept.
    room = largest * 2 * number
    inside = passes[0] + room * (3 * dim + chart.ffn_dim)
    # Gradients of the vectors: in fp32 by each route, and as they come from above.
    back = cells * dim * (2 * _EXACT + 2 * number) + room * 3 * dim
    back += len(layout.parent) * way_back(chart.num_layers, 2)
    outside = len(layout.message_child) * way_back(chart.num_decomposition_layers, 1)
    return inside + passes[1], max(inside + back, passes[1] + outside)


def _pair(chart: CompositionConfig, num_layers: int, maps: int, number: int, fused: bool) -> float:
    """Bytes of one edge of the composition model, or one message of the decomposition model.

    A layer saves for each of the two rows: queries, keys and values, the attention's output, the
    norms' outputs after the attention and after the feed-forward layer; GELU's value and
    derivative, both after dropout; a weight for each head; masks of a head's two weights and of two
    residuals, which have the type of numbers; two standard deviations. The kernels of whole levels
    (`fused`) make the attention's and GELU's output and the masks again.
    """
    dim, heads = chart.dim, chart.num_heads
    again = 0
    if not fused:
        again = dim + chart.ffn_dim + (2 * (dim + heads) if chart.dropout else 0)
    row = number * (5 * dim + chart.ffn_dim + heads + again) + 2 * _EXACT
    # The rows themselves, inputs and outputs of the score maps, the result and its deviation.
    ends = number * (2 * dim + maps * (2 * dim + chart.score_dim) + dim) + _EXACT
    return num_layers * 2 * row + ends


def _pair_weights(chart: CompositionConfig, num_layers: int, maps: int, number: int) -> float:
    """The sums of a pair model's gradients, in fp32, and its weights for one product."""
    dim, ffn = chart.dim, chart.ffn_dim
    sums = num_layers * (4 * dim * dim + 2 * dim * ffn) + maps * dim * (dim + chart.score_dim)
    return _EXACT * sums + number * num_layers * 3 * dim * dim


def _parser(config: GPSTConfig, batch: ContextBatch, sizes: _Sizes, device_type: str) -> float:
    """Of the parser (model/parser.py), whose layers pad sentences to groups of like length."""
    parser, tokens, number = config.parser, batch.num_tokens, sizes.number
    lengths = batch.sentence_lengths
    padded = sum(len(group) * int(lengths[group].max()) for group in length_groups(lengths))
    # A norm on the CPU also saves the normalised input.
    norm = number * (3 if device_type == "cpu" else 2) * parser.dim + _EXACT
    layer = padded * (2 * norm + number * (parser.dim + 4 * parser.ffn_dim))
    layer += padded * (number * 4 * parser.dim + _EXACT * (parser.num_heads + 1))
    width = parser.score_width
    score = number * 2 * (parser.dim + width) + sizes.masked(parser.dropout) * width
    turns = padded * number * parser.dim / parser.num_heads  # of rotary positions
    return parser.num_layers * layer + turns + tokens * (norm + score)
