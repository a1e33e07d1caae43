"""Triton's kernels against their PyTorch forms: on a GPU, else in Triton's interpreter."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import gpst.kernels
from gpst.chart.inside import inside
from gpst.chart.outside import outside
from gpst.chart.plan import build_plan
from gpst.composition import Composition, Decomposition
from gpst.config import CompositionConfig
from gpst.kernels import pair, use_triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _decide_anew():
    gpst.kernels._decide.cache_clear()
    yield
    gpst.kernels._decide.cache_clear()


def both(monkeypatch, function):
    """What the function gives with PyTorch's kernels and with Triton's."""
    results = []
    for choice in ("torch", "triton"):
        monkeypatch.setenv("GPST_KERNELS", choice)
        results.append(function())
    return results


def assert_near(ours, theirs, tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize(("pairs", "heads", "width"), [(1, 1, 4), (19, 3, 5), (32, 2, 16)])
def test_pieces_of_a_pair_layer(monkeypatch, dtype, tolerance, pairs, heads, width) -> None:
    torch.manual_seed(0)
    dim = heads * width
    packed = torch.randn(2, pairs, 3 * dim, device=DEVICE).to(dtype)
    gradient = torch.randn(2, 2, pairs, dim, device=DEVICE).to(dtype)
    x, y = torch.randn(2, pairs, dim, device=DEVICE).to(dtype)

    def pieces():
        mixed, weight = pair.pair_attention(packed, heads)
        normed, inverse_std = pair.add_norm(x, y.clone())
        return (
            mixed,
            weight,
            pair.pair_attention_backward(gradient, packed, weight),
            normed,
            inverse_std,
            pair.add_norm_backward(gradient[0], normed, inverse_std),
            pair.gelu_backward(gradient[0].clone(), x),
            pair.gelu_backward(gradient[0, :1].clone(), x),
        )

    plain, fused = both(monkeypatch, pieces)
    assert_near(fused, plain, tolerance)


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_passes_over_the_chart(monkeypatch, window: int, temperature: float) -> None:
    """Values, gradients on both routes, weights and heights."""
    torch.manual_seed(0)
    config = CompositionConfig(
        dim=12, num_heads=3, ffn_dim=16, num_layers=2, score_dim=4, dropout=0.0, score_dropout=0.0
    )
    composition, decomposition = Composition(config).to(DEVICE), Decomposition(config).to(DEVICE)
    rng = np.random.default_rng(0)
    plan = build_plan(rng.normal(size=16), np.array([1, 9, 6]), window).to(DEVICE)
    leaves = torch.randn(16, 12, device=DEVICE, requires_grad=True)
    parameters = [*composition.parameters(), *decomposition.parameters()]
    upstream = torch.randn(16, 12, device=DEVICE)

    def run():
        chart = inside(plan, composition, leaves, temperature)
        rebuilt = outside(plan, decomposition, chart.inside_ae)
        loss = (rebuilt * upstream).sum() + chart.heights.sum() + chart.inside_ar.square().sum()
        into = torch.autograd.grad(loss, [leaves, *parameters])
        return chart.inside_ae, chart.heights, chart.scores, chart.weights, rebuilt, *into

    plain, fused = both(monkeypatch, run)
    assert_near(fused, plain, 2e-4)


def test_double_precision_stays_with_pytorch(monkeypatch) -> None:
    monkeypatch.setenv("GPST_KERNELS", "triton")
    assert use_triton(torch.zeros(1, device=DEVICE))
    assert not use_triton(torch.zeros(1, device=DEVICE, dtype=torch.float64))


def test_an_unknown_choice_is_named(monkeypatch) -> None:
    monkeypatch.setenv("GPST_KERNELS", "cuda")
    with pytest.raises(ValueError, match="GPST_KERNELS='cuda': must be one of auto, torch, triton"):
        use_triton(torch.zeros(1))


class TestSelfCheck:
    def test_the_kernels_agree_here(self) -> None:
        from gpst.kernels.check import disagreement

        assert disagreement(DEVICE) == ""

    def test_a_wrong_kernel_is_found_and_said(self, monkeypatch, caplog) -> None:
        from gpst.kernels import triton_pair

        right = triton_pair.add_norm
        monkeypatch.setattr(triton_pair, "add_norm", lambda x, y: right(x, 1.1 * y))
        with caplog.at_level(logging.WARNING, "gpst"):
            assert not gpst.kernels._agrees(DEVICE)
        assert "norm differs from PyTorch by" in caplog.text

    def test_a_kernel_that_does_not_compile_is_not_used(self, monkeypatch, caplog) -> None:
        from gpst.kernels import triton_pair

        def broken(*_):
            raise RuntimeError("no such\ninstruction")

        monkeypatch.setattr(triton_pair, "pair_attention", broken)
        with caplog.at_level(logging.WARNING, "gpst"):
            assert not gpst.kernels._agrees(DEVICE)
        assert "not used: RuntimeError: no such instruction" in caplog.text
