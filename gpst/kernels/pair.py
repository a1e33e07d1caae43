"""The pieces of a pair layer that are not matrix products, forward and backward.

Gradients come in R routes at once (1 or 2): the same values leave the inside pass twice, and what
flows back on each route is kept apart. Shapes: 2 vectors of E pairs, h heads, width D.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from gpst.kernels.choice import fused_pieces


def pair_attention(
    packed: Float[Tensor, "2 E D3"], num_heads: int, mask: Float[Tensor, "2 E h 2"] | None = None
) -> tuple[Float[Tensor, "2 E D"], Float[Tensor, "2 E h"]]:
    """Attention between two vectors in closed form, from their queries, keys and values.

    The weight on vector 0 is sigmoid(q . (k_0 - k_1) / sqrt(head width)).

    Args:
        mask: what dropout multiplies the weights on vectors 0 and 1 with.
    Returns: (mixed values, weights on vector 0 before dropout).
    """
    if fused := fused_pieces(packed):
        return fused.pair_attention(packed, num_heads, mask)
    query, key, value = packed.unflatten(-1, (3, num_heads, -1)).unbind(2)
    logit = (query * (key[0] - key[1])).sum(-1).mul_(1.0 / math.sqrt(query.shape[-1]))
    weight = logit.sigmoid_()
    if mask is None:
        mixed = torch.lerp(value[1], value[0], weight.unsqueeze(-1))
    else:
        on_first, on_second = _after_dropout(weight, mask)
        mixed = torch.addcmul(on_second * value[1], on_first, value[0])
    return mixed.flatten(2), weight


def _after_dropout(weight: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(2, E, h, 1) weights on vector 0 and on vector 1."""
    on_first, on_second = weight.unsqueeze(-1), (1.0 - weight).unsqueeze(-1)
    if mask is None:
        return on_first, on_second
    return on_first * mask[..., :1], on_second * mask[..., 1:]


def pair_attention_backward(
    gradient: Float[Tensor, "R 2 E D"],
    packed: Float[Tensor, "2 E D3"],
    weight: Float[Tensor, "2 E h"],
    mask: Float[Tensor, "2 E h 2"] | None = None,
) -> Float[Tensor, "R 2 E D3"]:
    """Gradient of `packed` from that of the mixed values."""
    if fused := fused_pieces(gradient):
        return fused.pair_attention_backward(gradient, packed, weight, mask)
    num_heads = weight.shape[-1]
    query, key, value = packed.unflatten(-1, (3, num_heads, -1)).unbind(2)
    grad = gradient.new_empty(*gradient.shape[:-1], packed.shape[-1])
    grad_query, grad_key, grad_value = grad.unflatten(-1, (3, num_heads, -1)).unbind(3)
    g = gradient.unflatten(-1, (num_heads, -1))
    for vector, on_vector in enumerate(_after_dropout(weight, mask)):
        grad_vector = g * on_vector
        torch.add(grad_vector[:, 0], grad_vector[:, 1], out=grad_value[:, vector])
    slope = weight * (1.0 - weight) * (1.0 / math.sqrt(query.shape[-1]))
    values = value.unsqueeze(1)  # of the weighted vector, for either query
    if mask is not None:
        values = values * mask.permute(3, 0, 1, 2).unsqueeze(-1)
    grad_logit = ((g * (values[0] - values[1])).sum(-1) * slope).unsqueeze(-1)
    torch.mul(grad_logit, key[0] - key[1], out=grad_query)
    torch.mul(grad_logit[:, 0], query[0], out=grad_key[:, 0])
    grad_key[:, 0].addcmul_(grad_logit[:, 1], query[1])
    torch.neg(grad_key[:, 0], out=grad_key[:, 1])
    return grad


def add_norm(
    x: Float[Tensor, "M D"], y: Float[Tensor, "M D"]
) -> tuple[Float[Tensor, "M D"], Float[Tensor, "M 1"]]:
    """LayerNorm_0(x + y), and one over the standard deviation of x + y in fp32. May overwrite y."""
    if fused := fused_pieces(x):
        return fused.add_norm(x, y)
    normed, _, inverse_std = torch.native_layer_norm(y.add_(x), x.shape[-1:], None, None, 1e-5)
    return normed, inverse_std.to(torch.promote_types(inverse_std.dtype, torch.float32))


def add_norm_backward(
    gradient: Float[Tensor, "R M D"],
    normed: Float[Tensor, "M D"],
    inverse_std: Float[Tensor, "M 1"],
) -> Float[Tensor, "R M D"]:
    """Gradient of x + y from that of LayerNorm_0(x + y)."""
    if fused := fused_pieces(gradient):
        return fused.add_norm_backward(gradient, normed, inverse_std)
    mean = torch.zeros_like(inverse_std, dtype=normed.dtype)
    one = torch.ones_like(mean)
    grad = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    for g, out in zip(gradient, grad, strict=True):
        grad_sum, _, _ = torch.ops.aten.native_layer_norm_backward(
            g, normed, normed.shape[-1:], mean, one, None, None, [True, False, False]
        )
        torch.mul(grad_sum, inverse_std, out=out)
    return grad


def gelu(
    x: Tensor, with_slope: bool = True, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """x Phi(x), the exact form, and its slope Phi(x) + x Phi'(x) if a gradient will be wanted.

    Both come from one exponential, and the slope turns the way back of either route into a product:
    it is kept in place of x, which may be overwritten.

    Args:
        mask: what dropout multiplies the value with; the slope then has it, too.
    """
    if fused := fused_pieces(x):
        return fused.gelu(x, mask)
    value = torch.nn.functional.gelu(x)
    one = torch.ones_like(x) if mask is None else mask
    slope = torch.ops.aten.gelu_backward(one, x) if with_slope else None
    return value if mask is None else value.mul_(mask), slope
