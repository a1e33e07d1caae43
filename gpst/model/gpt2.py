"""GPT-2 of the paper's sizes on the same contexts, with the same interface as GPST.

The parameters, their names and the values are those of transformers' GPT-2, so that exports load
there. For training it is given the form that GPST's own blocks have: GELU in one kernel, attention
and products of gpst/kernels, and no check that makes a GPU's host wait.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config as HFGPT2Config
from transformers import GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.pytorch_utils import Conv1D

from gpst.batch import ContextBatch, on_device, padded_rows
from gpst.config import GPT2Config
from gpst.kernels.attention import causal_attention
from gpst.kernels.gelu import gelu
from gpst.kernels.product import linear
from gpst.layers.transformer import init_std
from gpst.model.initialisation import PAPER_STD
from gpst.model.losses import LossTerm, vocabulary_loss
from gpst.model.output import ModelOutput, check_context_length
from gpst.model.parameters import decay_groups


class _Product(Conv1D):
    """transformers' linear layer, whose weight is (inputs, outputs), by our products."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, transposed=True)


class _Block(GPT2Block):
    """transformers' block; over whole contexts, without a cache, in the form of GPST's."""

    def forward(self, hidden_states: Any, *given: Any, **options: Any) -> Any:
        if given or options:
            return super().forward(hidden_states, *given, **options)
        x, attention, mlp = hidden_states, self.attn, self.mlp
        packed = attention.c_attn(self.ln_1(x)).unflatten(-1, (3, attention.num_heads, -1))
        rate = attention.attn_dropout.p if self.training else 0.0
        attended = causal_attention(packed, rate).flatten(-2)
        x = x + attention.resid_dropout(attention.c_proj(attended))
        inner = gelu(mlp.c_fc(self.ln_2(x)), approximate="tanh")
        return x + mlp.dropout(mlp.c_proj(inner))


_OURS = {GPT2Block: _Block, Conv1D: _Product}


class GPT2Baseline(nn.Module):
    """GPT-2 that reads <bos> and the tokens of a context and predicts the tokens."""

    LOSSES: ClassVar = ("token",)
    STATISTICS: ClassVar[tuple[str, ...]] = ()

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
                attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
            )
        )
        for module in self.gpt2.modules():
            module.__class__ = _OURS.get(type(module), type(module))
        self.activation_checkpointing: set[str] = set()

    def forward(
        self, batch: ContextBatch, noise: float = 0.0, temperature: float = 1.0
    ) -> ModelOutput:
        """The token loss; noise and temperature are GPST's and do nothing here."""
        check_context_length(batch, self.config.max_context_tokens)
        features = self._features(batch)
        weight = self.gpt2.lm_head.weight
        loss = vocabulary_loss(features, weight, batch.tokens)
        return ModelOutput({"token": LossTerm(loss, "tokens")}, {}, features)

    def _features(self, batch: ContextBatch) -> Tensor:
        """(N, H) what predicts each token: the output after the tokens before it."""
        tokens, longest = batch.tokens, int(batch.context_lengths.max())
        rows = on_device(padded_rows(batch.context_token_ends), tokens.device)
        table = tokens.new_full((batch.num_contexts * longest,), self.config.bos_token_id)
        table = table.index_copy(0, rows, tokens).view(batch.num_contexts, longest)
        inputs = table.roll(1, 1)
        inputs[:, 0] = self.config.bos_token_id
        return self._hidden(inputs).flatten(0, 1).index_select(0, rows)

    def _hidden(self, inputs: Tensor) -> Tensor:
        """(B, T, H) from token ids (B, T): what `gpt2.transformer` computes of them.

        That looks at the values of its inputs (padding, packed sequences), and a GPU's host waits.
        """
        gpt2 = self.gpt2.transformer
        place = torch.arange(inputs.shape[1], device=inputs.device)
        x = gpt2.drop(gpt2.wte(inputs) + gpt2.wpe(place))
        recompute = "generator" in self.activation_checkpointing and torch.is_grad_enabled()
        for block in gpt2.h:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return gpt2.ln_f(x)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by how they are optimised (gpst/model/parameters.py)."""
        return decay_groups(self)
