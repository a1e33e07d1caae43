"""One function a loss; each is a sum, and says what it is to be a mean over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpst.batch import BatchCounts
from gpst.kernels.choice import use_triton
from gpst.kernels.product import STEP, add_product, pays, product
from gpst.layers.transformer import at_least_fp32, compute_dtype

Unit = Literal["tokens", "actions", "splits", "sentences", "examples"]
"""Examples are a fine-tuning task's: contexts with a label."""


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
    """Sum over tokens of -log softmax(features . embedding)[target], in fp32, nats.

    Never holds all N x V logits: chunks of rows go through forward and backward at once, and only
    the gradients of features and embedding are kept.
    """
    dtype = compute_dtype(features)
    features, embedding = features.to(dtype), embedding.to(dtype)
    with_gradient = torch.is_grad_enabled()
    return _VocabularyLoss.apply(features, embedding, targets, with_gradient)  # type: ignore[no-any-return]


# Logits at a time: few enough to be held, enough rows for products at full speed.
_CHUNK_LOGITS = {"cpu": 2**23, "cuda": 2**28}


def chunk_rows(vocab_size: int, device_type: str) -> int:
    """Rows of logits that the vocabulary loss holds at a time."""
    rows = _CHUNK_LOGITS.get(device_type, 2**24) // vocab_size
    return rows - rows % STEP or max(rows, 1)


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, embedding: Tensor, targets: Tensor, with_gradient: bool
    ) -> Tensor:
        rows = chunk_rows(len(embedding), features.device.type)
        ctx.dtype = embedding.dtype
        if use_triton(features):
            from gpst.kernels.gpu.cross_entropy import vocabulary_pass

            given = features.contiguous(), embedding.contiguous(), targets
            total, *ctx.gradients = vocabulary_pass(*given, rows, with_gradient)
            return total
        exact = torch.promote_types(features.dtype, torch.float32)
        total = torch.zeros((), dtype=exact, device=features.device)
        grad_features, grad_embedding = None, None
        if with_gradient:
            grad_features = torch.empty_like(features)
            grad_embedding = torch.zeros_like(embedding, dtype=exact)
        # One buffer for all chunks: fresh pages cost as much as the arithmetic on them. Where
        # oneDNN multiplies it stays untouched; the heap gives what its products are written to.
        buffer = features.new_empty(min(rows, len(features)), len(embedding))
        for start in range(0, len(features), rows):
            chunk = slice(start, start + rows)
            x, target = features[chunk], targets[chunk, None]
            if pays(x, embedding):
                logits = product(x, embedding)
            else:
                logits = at_least_fp32(torch.mm(x, embedding.T, out=buffer[: len(x)]))
            top, correct = logits.amax(1, keepdim=True), logits.gather(1, target)
            probabilities = torch.softmax(logits, 1, out=logits)
            # The likeliest token has at least 1 / V of the mass, so that its logarithm is sound.
            total += (top - probabilities.amax(1, keepdim=True).log() - correct).sum()
            if grad_features is None or grad_embedding is None:
                continue
            grad_logits = probabilities.scatter_add_(1, target, -torch.ones_like(top)).to(x.dtype)
            grad_features[chunk] = product(grad_logits, embedding.T)
            add_product(grad_embedding, grad_logits, x)
        ctx.gradients = grad_features, grad_embedding
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad_out,) = grad_outputs
        grad_features, grad_embedding = ctx.gradients
        ctx.gradients = None
        # In place: another V x H table costs as much in fresh pages as in arithmetic.
        grad_embedding = grad_embedding.mul_(grad_out.to(grad_embedding.dtype))
        return (
            (grad_features * grad_out).to(grad_features.dtype),
            grad_embedding.to(ctx.dtype),
            None,
            None,
        )


def type_loss(logits: Float[Tensor, "M 2"], types: Int64[Tensor, "M"]) -> Float[Tensor, ""]:
    """Sum over actions of the cross entropy of GEN or COMP, nats."""
    return F.cross_entropy(logits, types, reduction="sum")


def height_loss(
    heights: Float[Tensor, "S"], lengths: Int64[Tensor, "S"], max_height: int
) -> Float[Tensor, ""]:
    """Sum over sentences of max(h_root - max_height, 0) / n (L_h)."""
    return (F.relu(heights - max_height) / lengths).sum()
