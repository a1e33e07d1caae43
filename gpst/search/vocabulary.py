"""log p of given tokens: tiles of the vocabulary, of which no more than a running sum is kept."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.layers import at_least_fp32
from gpst.model import GPST

_TILE = 4096
"""Tokens at a time: the logits of 250 rows stay in the processor's cache."""
_GPU_LOGITS = 1 << 26
_HALF = "half_vocabulary"


def keep_half(model: GPST, dtype: torch.dtype) -> None:
    """The model also gets its tied embedding in half precision, which `log_p_of` then uses."""
    model.register_buffer(_HALF, model.embedding.weight.detach().to(dtype), persistent=False)


def log_p_of(
    model: GPST, features: Float[Tensor, "M H"], tokens: Int64[Tensor, "M"]
) -> Float[Tensor, "M"]:
    """log softmax(features E^T) at one token a row, float64.

    The token's own logit is computed by itself, in the features' precision.
    """
    weight = model.embedding.weight
    own = (features * weight.index_select(0, tokens)).sum(1)
    table: Tensor = getattr(model, _HALF, weight)
    inputs = features.to(table.dtype)
    tile = _TILE if table.device.type == "cpu" else max(1, _GPU_LOGITS // max(1, len(features)))
    sums = [at_least_fp32(inputs @ part.T).logsumexp(1, keepdim=True) for part in table.split(tile)]
    total = torch.cat(sums, 1).to(torch.float64).logsumexp(1)
    return (own.to(torch.float64) - total).clamp_max(0.0)
