"""Transformer blocks, heads, and what the weights of `init: width_scaled` start from."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpst.kernels.attention import causal_attention
from gpst.kernels.gelu import gelu
from gpst.kernels.product import Linear


def init_std(dim: int) -> float:
    """Standard deviation of initial weights: GPT-2's 0.02 at its width of 768, as 1 / sqrt(width).

    A narrow model with 0.02 starts with features near zero and stays on a plateau.
    """
    return 0.02 * math.sqrt(768 / dim)


def at_least_fp32(x: Tensor) -> Tensor:
    """x in fp32, or as it is in float64: for scores, norms and losses under half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def compute_dtype(x: Tensor) -> torch.dtype:
    """What matrix products of x are computed in: autocast's type where that is on."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def init_linear(layer: nn.Linear, scale: float = 1.0) -> None:
    """Weights N(0, scale * init_std of the inputs), biases 0."""
    nn.init.normal_(layer.weight, std=scale * init_std(layer.in_features))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class CausalBlock(nn.Module):
    """A pre-norm Transformer block with causal attention, as in GPT-2."""

    def __init__(self, dim: int, num_heads: int, ffn_dim: int, dropout: float, num_blocks: int):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = Linear(dim, 3 * dim)
        self.attention_out = Linear(dim, dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn_in = Linear(dim, ffn_dim)
        self.ffn_out = Linear(ffn_dim, dim)
        init_linear(self.query_key_value)
        init_linear(self.ffn_in)
        for residual in (self.attention_out, self.ffn_out):
            init_linear(residual, 1 / math.sqrt(2 * num_blocks))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _packed_heads(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch 3 h d"]:
        packed = self.query_key_value(self.attention_norm(x))
        return packed.unflatten(-1, (3, self.num_heads, -1))

    def _finish(self, x: Tensor, attended: Float[Tensor, "*batch h d"]) -> Tensor:
        x = x + self._drop(self.attention_out(attended.flatten(-2)))
        ffn = self.ffn_out(gelu(self.ffn_in(self.ffn_norm(x)), approximate="tanh"))
        return x + self._drop(ffn)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        rate = self.dropout if self.training else 0.0
        return self._finish(x, causal_attention(self._packed_heads(x), rate))

    def step(
        self, x: Float[Tensor, "R D"], attend: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "R D"]:
        """More inputs of sequences whose past the caller keeps.

        Args:
            attend: (R, h, d) what the inputs attend to, from their queries, keys and values
                (R, 3, h, d).
        """
        return self._finish(x, attend(self._packed_heads(x)))


class CausalStack(nn.Module):
    """Blocks one after another; `recompute` keeps only their inputs for the backward pass."""

    def __init__(self, dim: int, num_heads: int, ffn_dim: int, dropout: float, num_blocks: int):
        super().__init__()
        self.num_heads = num_heads
        self.blocks = nn.ModuleList(
            CausalBlock(dim, num_heads, ffn_dim, dropout, num_blocks) for _ in range(num_blocks)
        )

    def forward(self, x: Float[Tensor, "B T D"], recompute: bool = False) -> Tensor:
        for block in self.blocks:
            if recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)  # type: ignore[assignment]
            else:
                x = block(x)
        return x


class HeadMLP(nn.Module):
    """Linear, GELU, dropout, linear: the dense part of a prediction head."""

    def __init__(self, in_dim: int, mid_dim: int, out_dim: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.dense = Linear(in_dim, mid_dim)
        self.out = Linear(mid_dim, out_dim)
        init_linear(self.dense)
        init_linear(self.out)

    @torch.no_grad()
    def start_as(self, matrix: Float[Tensor, "O I"]) -> None:
        """Make the head compute matrix @ x at first, by gelu(x) - gelu(-x) = x; needs mid >= 2 in.

        A random MLP before the tied embedding hides from it what the layers below already say: a
        plateau at unigram perplexity several times as long (benchmarks/LOG.md).
        """
        size = matrix.shape[1]
        identity = torch.eye(size, dtype=self.dense.weight.dtype)
        self.dense.weight[: 2 * size] = torch.cat((identity, -identity))
        self.out.weight[:, : 2 * size] = torch.cat((matrix, -matrix), 1)
        self.out.weight[:, 2 * size :] = 0.0  # units to spare say nothing yet

    def forward(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        return self.out(F.dropout(gelu(self.dense(x)), self.dropout, self.training))
