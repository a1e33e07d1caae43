"""Cross entropy of rows of logits: the loss, and the gradient in the place of the logits."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _cross_entropy(logits, targets, losses, V: tl.constexpr, BLOCK: tl.constexpr,
                   GRADIENT: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * V
    column = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    # A running maximum and sum for each lane, so that the row is read once.
    for begin in range(0, V, BLOCK):
        inside = begin + column < V
        x = tl.load(at + begin + column, inside, float("-inf")).to(tl.float32)
        above = tl.maximum(top, x)
        shift = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp(top - shift) + tl.exp(x - shift)
        top = above
    most = tl.max(top, 0)
    log_total = most + tl.log(tl.sum(total * tl.exp(top - most), 0))
    target = tl.load(targets + row)
    correct = tl.load(at + target).to(tl.float32)
    tl.store(losses + row, log_total - correct)
    if GRADIENT:
        tl.debug_barrier()  # the target's logit has been read
        for begin in range(0, V, BLOCK):
            inside = begin + column < V
            x = tl.load(at + begin + column, inside, 0.0).to(tl.float32)
            grad = tl.exp(x - log_total) - tl.where(begin + column == target, 1.0, 0.0)
            tl.store(at + begin + column, grad, inside)


def cross_entropy_(logits: Tensor, targets: Tensor, losses: Tensor, gradient: bool) -> None:
    """Fills the losses of R rows in nats; logits become their gradient where it is wanted.

    Args:
        logits: (R, V), contiguous. targets: (R,). losses: (R,) fp32.
    """
    rows, vocab = logits.shape
    if rows:
        _cross_entropy[(rows,)](
            logits, targets, losses, vocab, min(_BLOCK, triton.next_power_of_2(vocab)), gradient,
            num_warps=8,
        )  # fmt: skip


def vocabulary_pass(
    features: Tensor, embedding: Tensor, targets: Tensor, rows: int, with_gradient: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(sum of the losses, gradients of features and of the embedding), `rows` logits at a time."""
    losses = torch.empty(len(features), dtype=torch.float32, device=features.device)
    grad_features = torch.empty_like(features) if with_gradient else None
    grad_embedding = None
    buffer = features.new_empty(min(rows, len(features)), len(embedding))
    for start in range(0, len(features), rows):
        chunk = slice(start, start + rows)
        x = features[chunk]
        logits = torch.mm(x, embedding.T, out=buffer[: len(x)])
        cross_entropy_(logits, targets[chunk], losses[chunk], with_gradient)
        if grad_features is not None:
            torch.mm(logits, embedding, out=grad_features[chunk])
            part = torch.mm(logits.T, x)
            if grad_embedding is not None:
                grad_embedding += part
            else:  # sums of several parts would lose small gradients in half precision
                grad_embedding = part if len(x) == len(features) else part.float()
            del part  # a table; the next chunk makes another
    if with_gradient and grad_embedding is None:
        grad_embedding = torch.zeros_like(embedding)
    return losses.sum(), grad_features, grad_embedding
