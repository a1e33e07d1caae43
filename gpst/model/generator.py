"""The generative model: type layers over post-order nodes, token layers over tokens (paper 3.2).

Node t of a context goes in after <bos>: its own embedding for a token, the up-scaled inside vector
for a constituent, plus the position embedding of w_t, the number of tokens generated so far. The
output of the type layers predicts the type of the next action; where that is GEN it goes on through
the token layers, which predict the token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gpst.batch import ContextBatch, on_device, padded_rows
from gpst.chart.decode import InducedTrees
from gpst.chart.layout import ChartLayout
from gpst.config import GPSTConfig
from gpst.layers.transformer import CausalStack, HeadMLP, at_least_fp32, init_linear, init_std


@dataclass(frozen=True)
class GeneratorPadding:
    """Where actions and tokens of a batch lie in padded rows, one row a context.

    Only the sizes of the sentences are needed, so it is made on the CPU before the trees are known.
    """

    num_contexts: int
    type_length: int
    """Longest context, in actions."""
    token_length: int
    """Longest context, in tokens."""
    node_row: Tensor
    """(M,) place of each action in the flat padded table (contexts x type_length)."""
    token_row: Tensor
    """(N,) place of each token in the flat padded table (contexts x token_length)."""
    context_of_node: Tensor
    """(M,) number of the first action of each action's context."""

    @classmethod
    def of(cls, batch: ContextBatch) -> GeneratorPadding:
        actions, action_ends = batch.context_actions, batch.context_action_ends
        device = batch.tokens.device

        return cls(
            batch.num_contexts,
            int(actions.max()),
            int(batch.context_lengths.max()),
            on_device(padded_rows(action_ends), device),
            on_device(padded_rows(batch.context_token_ends), device),
            on_device(np.repeat(action_ends - actions, actions), device),
        )


class Generator(nn.Module):
    """Type layers, token layers and their heads; the token embedding is given from outside."""

    def __init__(self, config: GPSTConfig):
        super().__init__()
        dim, heads, ffn = config.hidden_dim, config.num_heads, config.ffn_dim
        self.dropout = config.dropout
        self.max_context_tokens = config.max_context_tokens
        # w_t runs from 0 (at <bos>) to the number of tokens of the context.
        self.position = nn.Embedding(config.max_context_tokens + 1, dim)
        nn.init.normal_(self.position.weight, std=init_std(dim))
        self.type_layers = CausalStack(dim, heads, ffn, config.dropout, config.num_type_layers)
        self.type_norm = nn.LayerNorm(dim)
        self.type_head = HeadMLP(dim, dim, 2, config.head_dropout)
        # At first the trees are random: a quiet head keeps their noise out of the type layers.
        init_linear(self.type_head.out, 0.1)
        self.token_layers = CausalStack(dim, heads, ffn, config.dropout, config.num_token_layers)
        self.token_norm = nn.LayerNorm(dim)
        self.token_head = HeadMLP(dim, config.token_head_width, dim, config.head_dropout)
        self.token_head.start_as(torch.eye(dim))
        self.comp_embedding = (
            None if config.surrogate else nn.Parameter(torch.randn(dim) * init_std(dim))
        )
        """Ablation without surrogates: stands for every constituent."""

    def input_at(self, node: Float[Tensor, "*batch H"], words: Int64[Tensor, "*batch"]) -> Tensor:
        """The input of a node after which `words` tokens have been generated."""
        return F.dropout(node + self.position(words), self.dropout, self.training)

    def type_logits(self, hidden: Float[Tensor, "*batch H"]) -> Float[Tensor, "*batch 2"]:
        """Logits of (GEN, COMP), fp32."""
        return at_least_fp32(self.type_head(self.type_norm(hidden)))

    def token_features(self, hidden: Float[Tensor, "*batch H"]) -> Float[Tensor, "*batch H"]:
        """What the tied embedding is multiplied with, from the token layers' output."""
        return self.token_head(self.token_norm(hidden))

    def forward(
        self,
        nodes: Float[Tensor, "M H"],
        bos: Float[Tensor, "H"],
        padding: GeneratorPadding,
        layout: ChartLayout,
        induced: InducedTrees,
        recompute: bool = False,
    ) -> tuple[Float[Tensor, "M 2"], Float[Tensor, "N H"], Int64[Tensor, "M"]]:
        """
        Args:
            nodes: embeddings of the trees' nodes in post-order, without positions.
            bos: embedding of <bos>.
        Returns:
            type logits of every action, token features of every token, types of the actions.
        """
        is_token = induced.nodes < layout.num_tokens
        # Tokens generated before action t of its context = tokens among the nodes before it.
        before = torch.cumsum(is_token, 0) - is_token.to(torch.int64)
        words = before - before[padding.context_of_node]
        # The input before action t is node t-1, or <bos> at the start of a context.
        number = torch.arange(len(nodes), device=nodes.device)
        at_start = number == padding.context_of_node
        previous = torch.where(at_start[:, None], bos, nodes.roll(1, 0))
        flat = self.input_at(previous, words)
        rows = flat.new_zeros(padding.num_contexts * padding.type_length, flat.shape[1])
        rows = rows.index_copy(0, padding.node_row, flat)
        hidden = self.type_layers(
            rows.view(padding.num_contexts, padding.type_length, -1), recompute
        )
        hidden = hidden.flatten(0, 1).index_select(0, padding.node_row)
        # Token k is written by the action at its own place in the post-order.
        before_tokens = hidden.index_select(0, induced.place[: layout.num_tokens])
        before_tokens = F.dropout(before_tokens, self.dropout, self.training)
        rows = flat.new_zeros(padding.num_contexts * padding.token_length, flat.shape[1])
        rows = rows.index_copy(0, padding.token_row, before_tokens)
        written = self.token_layers(
            rows.view(padding.num_contexts, padding.token_length, -1), recompute
        )
        written = written.flatten(0, 1).index_select(0, padding.token_row)
        types = torch.where(is_token, 0, 1)
        return self.type_logits(hidden), self.token_features(written), types
