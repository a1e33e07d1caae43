"""GPT-2 of the paper's sizes on the same contexts, with the same interface as GPST."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, GPT2LMHeadModel
from transformers import GPT2Config as HFGPT2Config
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from gpst.batch import ContextBatch, on_device, padded_rows
from gpst.config import GPT2Config
from gpst.groups import decay_groups
from gpst.initialisation import PAPER_STD
from gpst.kernels.attention import causal_attention
from gpst.layers import init_std
from gpst.losses import LossTerm, vocabulary_loss
from gpst.model import ModelOutput, _check_context_length

_NAME = "gpst_causal"


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention of transformers' own form, or ours where that is slow: dropout on a CPU."""
    whole = attention_mask is None and query.shape == key.shape
    if dropout > 0.0 and query.device.type == "cpu" and whole:
        packed = torch.stack((query, key, value)).permute(1, 3, 0, 2, 4)
        return causal_attention(packed, dropout), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, **options
    )


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)


class GPT2Baseline(nn.Module):
    """GPT-2 that reads <bos> and the tokens of a context and predicts the tokens."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.config = config
        std = PAPER_STD if config.init == "paper" else init_std(config.hidden_dim)
        self.gpt2 = GPT2LMHeadModel(
            HFGPT2Config(
                vocab_size=config.vocab_size,
                n_positions=config.max_context_tokens,
                n_embd=config.hidden_dim,
                n_layer=config.num_layers,
                n_head=config.num_heads,
                n_inner=config.ffn_dim,
                resid_pdrop=config.dropout,
                embd_pdrop=config.dropout,
                attn_pdrop=config.dropout,
                initializer_range=std,
                bos_token_id=config.bos_token_id,
                eos_token_id=config.bos_token_id,
                use_cache=False,
                attn_implementation=_NAME,  # pyright: ignore[reportCallIssue]
            )
        )
        self.checkpointing: set[str] = set()
        self._recomputing = False

    def forward(
        self, batch: ContextBatch, noise: float = 0.0, temperature: float = 1.0
    ) -> ModelOutput:
        """The token loss; noise and temperature are GPST's and do nothing here."""
        _check_context_length(batch, self.config.max_context_tokens)
        features = self._features(batch)
        weight = self.gpt2.lm_head.weight
        loss = vocabulary_loss(features, weight, batch.tokens)
        return ModelOutput({"token": LossTerm(loss, "tokens")}, {}, features)

    def _features(self, batch: ContextBatch) -> Tensor:
        """(N, H) what predicts each token: the output after the tokens before it."""
        lengths, tokens = batch.context_lengths, batch.tokens
        rows = on_device(padded_rows(lengths), tokens.device)
        longest = int(lengths.max())
        table = tokens.new_full((batch.num_contexts * longest,), self.config.bos_token_id)
        table = table.index_copy(0, rows, tokens).view(batch.num_contexts, longest)
        inputs = table.roll(1, 1)
        inputs[:, 0] = self.config.bos_token_id
        self._set_recompute("generator" in self.checkpointing)
        hidden = self.gpt2.transformer(input_ids=inputs).last_hidden_state
        return hidden.flatten(0, 1).index_select(0, rows)

    def _set_recompute(self, recompute: bool) -> None:
        if recompute == self._recomputing:
            return
        if recompute:
            self.gpt2.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.gpt2.gradient_checkpointing_disable()
        self._recomputing = recompute

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by how they are optimised (gpst/groups.py)."""
        return decay_groups(self)
