"""Do Triton's kernels agree with PyTorch on this device? Asked once, on a small example."""

from __future__ import annotations

import torch
from torch import Tensor

from gpst.kernels.gpu import pair, segments
from gpst.kernels.gpu.cross_entropy import vocabulary_pass

_TOLERANCE = 1e-3


def disagreement(device: torch.device) -> str:
    """What disagrees, in words; empty when nothing does."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    packed, gradient = random(2, 33, 3 * 24), random(2, 2, 33, 24)
    ours = pair.pair_attention(packed, 3)
    grads = pair.pair_attention_backward(gradient, packed, ours[1])
    leaf = packed.clone().requires_grad_()
    mixed = _plain_attention(leaf, 3)
    pairs = {"pair attention": (ours[0], mixed)}
    for route in range(2):
        (expected,) = torch.autograd.grad(mixed, leaf, gradient[route], retain_graph=True)
        pairs[f"pair attention backward, route {route}"] = grads[route], expected
    x, y = random(2, 33, 24)
    normed, inverse = pair.add_norm(x, y)
    pairs["norm"] = normed, torch.nn.functional.layer_norm(x + y, (24,))
    leaf = (x + y).requires_grad_()
    (expected,) = torch.autograd.grad(
        torch.nn.functional.layer_norm(leaf, (24,)), leaf, gradient[0, 0]
    )
    pairs["norm backward"] = (
        pair.add_norm_backward(gradient[0], normed, inverse)[0],
        expected,
    )
    pairs |= _segments(random(7, 24), random(7), random(3, 24), device)
    pairs |= _vocabulary(random(5, 24), random(300, 24) * 0.1)
    for name, (ours, theirs) in pairs.items():
        error = (ours.float() - theirs.float()).abs().max().item()
        if not error < _TOLERANCE:
            return f"{name} differs from PyTorch by {error:.2g}"
    return ""


def _plain_attention(packed: Tensor, num_heads: int) -> Tensor:
    query, key, value = packed.unflatten(-1, (3, num_heads, -1)).permute(2, 1, 3, 0, 4).unbind(0)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return mixed.permute(2, 0, 1, 3).flatten(2)


def _segments(
    vectors: Tensor, scores: Tensor, gradient: Tensor, device: torch.device
) -> dict[str, tuple[Tensor, Tensor]]:
    offsets = torch.tensor([0, 1, 4, 7], device=device)
    mixed = segments.segment_mix(vectors, scores, offsets)
    leaf = scores.clone().requires_grad_()
    parts = [slice(0, 1), slice(1, 4), slice(4, 7)]
    expected = torch.stack([torch.softmax(leaf[part], 0) @ vectors[part] for part in parts])
    grad_scores, _ = segments.segment_mix_backward(vectors, mixed.weights, offsets, gradient)
    (grad_leaf,) = torch.autograd.grad(expected, leaf, gradient)
    return {"segments": (mixed.values, expected), "segments backward": (grad_scores, grad_leaf)}


def _vocabulary(features: Tensor, embedding: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    targets = torch.arange(len(features), device=features.device) * 7
    loss, grad_features, grad_embedding = vocabulary_pass(features, embedding, targets, 3, True)
    assert grad_features is not None
    assert grad_embedding is not None
    features.requires_grad_()
    embedding.requires_grad_()
    expected = torch.nn.functional.cross_entropy(features @ embedding.T, targets, reduction="sum")
    gradients = torch.autograd.grad(expected, (features, embedding))
    return {
        "loss of the vocabulary": (loss, expected),
        "gradient of features": (grad_features, gradients[0]),
        "gradient of the embedding": (grad_embedding, gradients[1]),
    }
