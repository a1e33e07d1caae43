"""Kernels against plain PyTorch: values and gradients in float64, masks by what they drop."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from gpst.kernels import attention, pair
from gpst.kernels.dropout import keep_mask
from gpst.kernels.gelu import gelu

CPU = torch.device("cpu")


def seeded(function):
    """The function with the same random numbers at every call."""

    def wrapped(*args):
        torch.manual_seed(3)
        return function(*args)

    return wrapped


def plain_attention(packed: torch.Tensor) -> torch.Tensor:
    query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 150])
def test_blockwise_attention_is_attention(length: int) -> None:
    packed = torch.randn(2, length, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    # At this rate no weight is dropped, so that both forms compute the same.
    ours = attention.causal_attention(packed, 1e-9)
    expected = plain_attention(packed)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    upstream = torch.randn_like(ours)
    mine, theirs = (torch.autograd.grad(out, packed, upstream)[0] for out in (ours, expected))
    torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=0)


def test_blockwise_attention_drops_the_same_weights_in_both_directions() -> None:
    packed = torch.randn(1, 70, 3, 1, 2, dtype=torch.float64, requires_grad=True)
    function = seeded(lambda x: attention.causal_attention(x, 0.3))
    assert torch.autograd.gradcheck(function, packed, fast_mode=True)


def test_dropped_attention_weights_are_scaled() -> None:
    # With equal keys all weights of a query are equal and the values alone tell what was kept.
    packed = torch.zeros(1, 400, 3, 1, 1)
    packed[:, :, 2] = 1.0
    torch.manual_seed(0)
    attended = attention.causal_attention(packed, 0.25).flatten()
    assert attended[0].item() in (0.0, pytest.approx(4 / 3))
    assert attended[200:].mean().item() == pytest.approx(1.0, abs=0.02)
    assert attended[200:].std().item() > 0.01


def test_half_precision_keeps_the_softmax_in_fp32() -> None:
    packed = torch.randn(1, 300, 3, 2, 8)
    half = attention.causal_attention(packed.bfloat16(), 1e-9)
    assert half.dtype == torch.bfloat16
    exact = plain_attention(packed.bfloat16().float())
    assert (half.float() - exact).abs().max() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_keep_mask_has_two_values_and_the_rate(dtype: torch.dtype) -> None:
    mask = keep_mask(0.2, 7, (300, 501), dtype, CPU)
    assert mask.dtype == dtype
    kept = mask != 0
    assert kept.double().mean().item() == pytest.approx(0.8, abs=0.005)
    assert mask[kept].double().unique().tolist() == pytest.approx([1.25], rel=4e-3)
    assert torch.equal(mask, keep_mask(0.2, 7, (300, 501), dtype, CPU))
    assert not torch.equal(mask, keep_mask(0.2, 8, (300, 501), dtype, CPU))


def test_what_keep_mask_drops_hangs_together_with_nothing() -> None:
    """Neighbours, rows, halves, and the masks of seeds next to each other."""
    first, second, other = (
        (keep_mask(0.3, seed, (512, 512), torch.float64, CPU) == 0).double() - 0.3
        for seed in (7, 8, 7 + 2**32)
    )
    shifted = [torch.roll(first, s, (0, 1)) for s in ((0, 1), (1, 0), (256, 0), (0, 16))]
    for one in (second, other, *shifted):
        # Of 262,144 independent products the mean's standard deviation is 0.0004.
        assert abs((first * one).mean().item()) < 0.002
    assert first.mean(0).abs().max() < 0.11
    assert first.mean(1).abs().max() < 0.11
    assert keep_mask(0.5, 1, (3,), torch.float32, CPU).shape == (3,)
    odd = torch.stack([keep_mask(0.5, seed, (3,), torch.float32, CPU) for seed in range(400)])
    assert (odd == 0).float().mean(0).tolist() == pytest.approx([0.5] * 3, abs=0.1)


class TestPieces:
    """Each backward form against autograd, for two routes at once."""

    @staticmethod
    def routes(function, inputs: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        inputs = inputs.detach().requires_grad_()
        out = function(inputs)
        return torch.stack(
            [torch.autograd.grad(out, inputs, g, retain_graph=True)[0] for g in gradient]
        )

    def test_pair_attention(self) -> None:
        packed = torch.randn(2, 5, 3 * 6, dtype=torch.float64)

        def softmax_form(x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.permute(1, 2, 0, 3) for t in x.unflatten(-1, (3, 3, 2)).unbind(2))
            mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(2), -1) @ v
            return mixed.permute(2, 0, 1, 3).flatten(2)

        mixed, weight = pair.pair_attention(packed, 3)
        torch.testing.assert_close(mixed, softmax_form(packed))
        gradient = torch.randn(2, *mixed.shape, dtype=torch.float64)
        ours = pair.pair_attention_backward(gradient, packed, weight)
        torch.testing.assert_close(ours, self.routes(softmax_form, packed, gradient))

    def test_dropped_weights_of_pair_attention(self) -> None:
        packed = torch.randn(2, 5, 3 * 6, dtype=torch.float64)
        mask = torch.rand(2, 5, 3, 2, dtype=torch.float64)

        def softmax_form(x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.permute(1, 2, 0, 3) for t in x.unflatten(-1, (3, 3, 2)).unbind(2))
            weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(2), -1)
            return (weights * mask.permute(1, 2, 0, 3) @ v).permute(2, 0, 1, 3).flatten(2)

        mixed, weight = pair.pair_attention(packed, 3, mask)
        torch.testing.assert_close(mixed, softmax_form(packed))
        gradient = torch.randn(2, *mixed.shape, dtype=torch.float64)
        ours = pair.pair_attention_backward(gradient, packed, weight, mask)
        torch.testing.assert_close(ours, self.routes(softmax_form, packed, gradient))

    def test_add_norm(self) -> None:
        x, y = torch.randn(2, 7, 6, dtype=torch.float64)
        normed, inverse_std = pair.add_norm(x, y.clone())
        torch.testing.assert_close(normed, F.layer_norm(x + y, (6,)))
        gradient = torch.randn(2, 7, 6, dtype=torch.float64)
        ours = pair.add_norm_backward(gradient, normed, inverse_std)
        expected = self.routes(lambda s: F.layer_norm(s, (6,)), x + y, gradient)
        torch.testing.assert_close(ours, expected)

    def test_gelu(self) -> None:
        x = torch.randn(7, 6, dtype=torch.float64)
        gradient = torch.randn(2, 7, 6, dtype=torch.float64)
        value, slope = pair.gelu(x)
        assert slope is not None
        torch.testing.assert_close(value, F.gelu(x))
        torch.testing.assert_close(gradient * slope, self.routes(F.gelu, x, gradient))
        assert pair.gelu(x, with_slope=False)[1] is None
        mask = torch.rand_like(x)
        dropped, dropped_slope = pair.gelu(x, mask=mask)
        torch.testing.assert_close(dropped, value * mask)
        torch.testing.assert_close(dropped_slope, slope * mask)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_compiled_gelu_from_end_to_end(monkeypatch, approximate: str) -> None:
    monkeypatch.setenv("GPST_KERNELS", "numba")
    far = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    x = torch.cat((torch.linspace(-14.0, 14.0, 100_001), far)).requires_grad_()
    exact = x.detach().double().requires_grad_()
    upstream = torch.randn(len(x))
    ours, expected = gelu(x, approximate), F.gelu(exact, approximate=approximate)
    assert ours.grad_fn.name() == "_GeluBackward"
    torch.testing.assert_close(ours.double(), expected, atol=5e-7, rtol=1e-6)
    (into,) = torch.autograd.grad(ours, x, upstream)
    (expected_into,) = torch.autograd.grad(expected, exact, upstream.double())
    torch.testing.assert_close(into.double(), expected_into, atol=2e-6, rtol=1e-6)


def test_gelu_is_pytorch_s_where_no_loop_fits(monkeypatch) -> None:
    monkeypatch.setenv("GPST_KERNELS", "numba")
    wide = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.equal(gelu(wide), F.gelu(wide))
    single = torch.randn(4, 3, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(gelu(single), F.gelu(single))
    torch.testing.assert_close(gelu(single.T), F.gelu(single.T))
