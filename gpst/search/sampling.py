"""How tokens and actions are drawn: temperature, top-k, top-p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Float, Int64
from torch import Tensor

FREEZING = 1e-30
"""Below it logits over the temperature are no numbers any more."""


@dataclass(frozen=True)
class Sampling:
    """How tokens and actions are drawn; the defaults draw from the model's own distribution."""

    temperature: float = 1.0
    """Divides the logits of tokens and of types; 0: the most probable one."""
    top_k: int | None = None
    """Draw from the k most probable tokens."""
    top_p: float | None = None
    """Draw from the most probable tokens that together have at least this probability."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature: {self.temperature} is not allowed; it must be >= 0 and finite"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: {self.top_k} is not allowed; it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: {self.top_p} is not allowed; it must be in (0, 1]")
        check_seed(self.seed)


def check_seed(seed: int) -> None:
    """Raises ValueError for what torch's generators do not take."""
    if not isinstance(seed, Integral) or not -(2**63) <= seed < 2**64:
        raise ValueError(
            f"seed: {seed!r} is not allowed; it must be a whole number from -2**63 to 2**64 - 1"
        )


def drawn_from(
    logits: Float[Tensor, "*batch V"], sampling: Sampling, random: torch.Generator
) -> Int64[Tensor, "*batch"]:
    """A choice for each row."""
    if sampling.temperature < FREEZING:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, index = torch.softmax(logits, -1).sort(dim=-1, descending=True)
        # A token stays while those before it have not yet reached top_p.
        out = (ordered.cumsum(-1) - ordered) >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(out).scatter(-1, index, out), -torch.inf)
    chances = torch.softmax(logits, -1)
    drawn = torch.multinomial(chances.flatten(0, -2), 1, generator=random)
    return drawn.view(logits.shape[:-1])
