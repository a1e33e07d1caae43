"""The memory that a forward pass keeps for the backward pass, from the sizes of a batch.

The terms are linear in rows times widths. Their factors were found by adding up, tensor by tensor,
what autograd keeps of each module (tests/pipeline/test_pipe_memory.py does so on a real model): a
Transformer block keeps 10 vectors of its width and 2 of its inner width for a position, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpst.batch import ContextBatch
from gpst.chart.plan import build_plan
from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ModelConfig
from gpst.losses import chunk_rows

ASSUMED_SENTENCE_TOKENS = 24
"""Tokens of a sentence where there is no data to look at."""
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Of a number in the forward and backward passes."""


@dataclass(frozen=True)
class Activations:
    """Bytes of one micro-batch on a rank, where the forward pass ends."""

    kept: int
    """By autograd, until the backward pass has used them."""
    workspace: int
    """For the vocabulary heads: a chunk of logits with its gradient, and that of the embedding."""

    @property
    def total(self) -> int:
        """Both."""
        return self.kept + self.workspace


def assumed_batch(num_contexts: int, context_tokens: int) -> ContextBatch:
    """Full contexts of sentences of `ASSUMED_SENTENCE_TOKENS`."""
    lengths = [ASSUMED_SENTENCE_TOKENS] * (context_tokens // ASSUMED_SENTENCE_TOKENS)
    if rest := context_tokens - sum(lengths):
        lengths.append(rest)
    return ContextBatch(
        torch.zeros(num_contexts * context_tokens, dtype=torch.int64),
        np.array(lengths * num_contexts, np.int64),
        np.array([len(lengths)] * num_contexts, np.int64),
    )


def activation_bytes(
    config: ModelConfig,
    batch: ContextBatch,
    precision: str,
    checkpointing: tuple[str, ...] = (),
    device_type: str = "cuda",
) -> Activations:
    """What a micro-batch takes on a rank.

    Args:
        batch: on the CPU; only its sizes matter.
        precision: fp32, bf16 or fp16.
        checkpointing: parts that are recomputed (composition, generator): of them stay the inputs,
            and what one block or one level of the chart keeps while it is worked on.
        device_type: cuda or cpu; logits come in smaller chunks on the CPU.
    """
    size = BYTES[precision]
    if isinstance(config, GPT2Config):
        kept = _gpt2(config, batch, size, "generator" in checkpointing)
        heads = 1
    else:
        kept = _gpst(config, batch, size, checkpointing)
        heads = 2
    hidden, vocab = config.hidden_dim, config.vocab_size
    kept += heads * size * batch.num_tokens * hidden  # gradients made in the forward pass
    rows = min(batch.num_tokens, chunk_rows(vocab, device_type))
    logits = rows * vocab * (4 if size == 4 else 4 + 2 * size)
    return Activations(int(kept), int(heads * 4 * vocab * hidden + logits))


def _stack(
    positions: int, config: ModelConfig, num_layers: int, size: int, again: bool, inner: int = 2
) -> float:
    """Of Transformer blocks, which keep so many vectors of their inner width."""
    widths = 10 * config.hidden_dim + inner * config.ffn_dim + 2 * config.num_heads
    block = positions * (size * widths + 16)
    if not again:
        return num_layers * block
    return num_layers * size * positions * config.hidden_dim + block


def _gpt2(config: GPT2Config, batch: ContextBatch, size: int, again: bool) -> float:
    positions = batch.num_contexts * int(batch.context_lengths.max())
    rest = 6 * size * positions * config.hidden_dim
    # The GELU of transformers' GPT-2 is made of several steps, each with a result of its own.
    return _stack(positions, config, config.num_layers, size, again, inner=5) + rest


def _gpst(
    config: GPSTConfig, batch: ContextBatch, size: int, checkpointing: tuple[str, ...]
) -> float:
    chart = config.composition
    scores = np.random.default_rng(0).random(batch.num_tokens, np.float32)
    plan = build_plan(scores, batch.sentence_lengths, chart.window, chart.schedule)
    tokens, actions = batch.num_tokens, batch.counts.actions
    again = "generator" in checkpointing
    type_length = int((2 * batch.context_lengths - batch.sentences_per_context).max())
    token_length = int(batch.context_lengths.max())
    generator = _stack(
        batch.num_contexts * type_length, config, config.num_type_layers, size, again
    ) + _stack(batch.num_contexts * token_length, config, config.num_token_layers, size, again)
    edges = len(plan.parent)
    if "composition" in checkpointing:
        # One level at a time; the first one is the largest.
        edges = max((level.last_edge - level.first_edge for level in plan.levels), default=0)
    pairs = edges * _pair(chart, chart.num_layers, size, mapped=2)
    pairs += 2 * edges * _pair(chart, chart.num_decomposition_layers, size, mapped=1)
    if "composition" not in checkpointing:
        pairs += 2 * plan.num_cells * _map(chart, size)
    rest = size * config.hidden_dim * (7.3 * actions + 4.5 * tokens)
    # GELU's slope and value, and the mask, in two MLPs.
    rest += 3 * size * tokens * (config.token_head_width + config.parser.score_width)
    rest += size * chart.dim * (14 * tokens + 2.3 * plan.num_cells) + 1000 * tokens
    return generator + pairs + _parser(config, batch, size) + rest


def _pair(config: CompositionConfig, num_layers: int, size: int, mapped: int) -> float:
    """Bytes of one edge of the composition model, or one message of the decomposition model.

    Args:
        mapped: of its two vectors, those that go through a map of the score there.
    """
    layer = size * (16 * config.dim + 2 * config.ffn_dim + 2 * config.num_heads) + 16
    return num_layers * layer + size * 3 * config.dim + mapped * _map(config, size) + 16


def _map(config: CompositionConfig, size: int) -> float:
    """Bytes of one vector in one map of a score."""
    return size * (2 * config.dim + config.score_dim)


def _parser(config: GPSTConfig, batch: ContextBatch, size: int) -> float:
    own = config.parser
    return (
        batch.num_tokens
        * own.num_layers
        * ((16 + 11.3 * size) * own.dim + 4 * size * own.ffn_dim + 100)
    )
