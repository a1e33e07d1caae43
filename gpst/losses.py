"""One function a loss; each is a sum, and says what it is to be a mean over (design section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.batch import BatchCounts
from gpst.layers import at_least_fp32

Unit = Literal["tokens", "actions", "splits", "sentences"]


@dataclass(frozen=True)
class LossTerm:
    """A sum over the batch and the unit that it is a mean over once divided."""

    sum: Tensor
    per: Unit

    def mean(self, counts: BatchCounts) -> Tensor:
        """sum / count; 0 where the batch has none (one-token sentences have no splits)."""
        return self.sum / max(getattr(counts, self.per), 1)


def total_loss(terms: dict[str, LossTerm], counts: BatchCounts) -> Tensor:
    """L = L_ae + L_ar + L_p + L_h, each a mean over the global batch.

    Args:
        counts: of the *global* batch, so that the loss does not depend on how a batch is cut.
    """
    return torch.stack([term.mean(counts) for term in terms.values()]).sum()


def vocabulary_loss(
    features: Float[Tensor, "N H"], embedding: Float[Tensor, "V H"], targets: Int64[Tensor, "N"]
) -> Float[Tensor, ""]:
    """Sum over tokens of -log softmax(features . embedding)[target], in fp32, nats."""
    logits = at_least_fp32(features @ embedding.T)
    return F.cross_entropy(logits, targets, reduction="sum")


def type_loss(logits: Float[Tensor, "M 2"], types: Int64[Tensor, "M"]) -> Float[Tensor, ""]:
    """Sum over actions of the cross entropy of GEN or COMP, nats."""
    return F.cross_entropy(logits, types, reduction="sum")


def height_loss(
    heights: Float[Tensor, "S"], lengths: Float[Tensor, "S"], max_height: int
) -> Float[Tensor, ""]:
    """Sum over sentences of max(h_root - max_height, 0) / n (L_h)."""
    return (F.relu(heights - max_height) / lengths).sum()
