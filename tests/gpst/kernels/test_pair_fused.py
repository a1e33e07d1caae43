"""Fused kernels against their PyTorch forms: numba's on the CPU; Triton's on a GPU, else in its
interpreter."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import gpst.kernels.choice
from gpst.chart.inside import inside
from gpst.chart.layout import build_layout
from gpst.chart.outside import outside
from gpst.config import CompositionConfig, GPT2Config
from gpst.config_reader import ConfigError
from gpst.kernels import pair
from gpst.kernels.choice import fused_pieces, use_triton
from gpst.layers.composition import Composition, Decomposition
from gpst.model.build import build_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _decide_anew():
    gpst.kernels.choice._decide.cache_clear()
    yield
    gpst.kernels.choice._decide.cache_clear()


HOMES = {"triton": DEVICE, "numba": torch.device("cpu")}


def both(monkeypatch, fused, function):
    """What the function gives with PyTorch's kernels and with fused ones."""
    results = []
    for choice in ("torch", fused):
        monkeypatch.setenv("GPST_KERNELS", choice)
        results.append(function())
    return results


def assert_near(ours, theirs, tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("kernels", "dtype", "tolerance"),
    [
        ("triton", torch.float32, 1e-5),
        ("triton", torch.bfloat16, 4e-2),
        ("numba", torch.float32, 1e-5),
    ],
)
@pytest.mark.parametrize(("pairs", "heads", "width"), [(1, 1, 4), (19, 3, 5), (32, 2, 16)])
def test_pieces_of_a_pair_layer(
    monkeypatch, kernels, dtype, tolerance, pairs, heads, width
) -> None:
    torch.manual_seed(0)
    dim, device = heads * width, HOMES[kernels]
    packed = torch.randn(2, pairs, 3 * dim, device=device).to(dtype)
    gradient = torch.randn(2, 2, pairs, dim, device=device).to(dtype)
    x, y = torch.randn(2, pairs, dim, device=device).to(dtype)
    mask = (torch.rand(2, pairs, heads, 2, device=device) < 0.7).to(dtype) / 0.7
    inner_mask = (torch.rand(pairs, dim, device=device) < 0.7).to(dtype) / 0.7

    def pieces():
        mixed, weight = pair.pair_attention(packed, heads)
        dropped, same_weight = pair.pair_attention(packed, heads, mask)
        normed, inverse_std = pair.add_norm(x, y.clone())
        return (
            mixed,
            weight,
            pair.pair_attention_backward(gradient, packed, weight),
            dropped,
            same_weight,
            pair.pair_attention_backward(gradient, packed, weight, mask),
            normed,
            inverse_std,
            pair.add_norm_backward(gradient[0], normed, inverse_std),
            *pair.gelu(x.clone()),
            *pair.gelu(x.clone(), mask=inner_mask),
        )

    plain, fused = both(monkeypatch, kernels, pieces)
    assert_near(fused, plain, tolerance)


@pytest.mark.parametrize("kernels", ["triton", "numba"])
def test_gelu_from_end_to_end(monkeypatch, kernels: str) -> None:
    monkeypatch.setenv("GPST_KERNELS", kernels)
    far = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    x = torch.cat((torch.linspace(-14.0, 14.0, 100_001), far)).to(HOMES[kernels])
    exact = x.double().requires_grad_()
    expected = torch.nn.functional.gelu(exact)
    (expected_slope,) = torch.autograd.grad(expected.sum(), exact)
    value, slope = pair.gelu(x)
    assert slope is not None
    torch.testing.assert_close(value.double(), expected, atol=5e-7, rtol=1e-6)
    torch.testing.assert_close(slope.double(), expected_slope, atol=5e-7, rtol=0)


QUICK = [("triton", 2, 0.7, True, 0.2)]  # kernels of whole levels: test_fused_levels.py
QUICK += [("numba", 1, 0.7, False, 0.0), ("numba", 2, 0.7, True, 0.2)]
QUICK += [("numba", 1, 1.0, True, 0.2), ("numba", 2, 1.0, False, 0.2)]
LONG = [("triton", 1, 0.7, False, 0.0), ("triton", 1, 1.0, True, 0.2)]
LONG += [("triton", 2, 1.0, False, 0.0)]
LONG += [(name, 3, 1.0, False, 0.0) for name in HOMES]
LONG += [(name, 3, 0.7, False, 0.2) for name in HOMES]


@pytest.mark.parametrize(
    ("kernels", "window", "temperature", "recompute", "dropout"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)],
)
def test_passes_over_the_chart(
    monkeypatch, kernels: str, window: int, temperature: float, recompute: bool, dropout: float
) -> None:
    """Values, gradients on both routes, weights and heights; whole levels: test_fused_levels."""
    torch.manual_seed(0)
    device = HOMES[kernels]
    config = CompositionConfig(
        dim=12, num_heads=3, ffn_dim=16, num_layers=2, score_dim=4, dropout=dropout
    )
    composition, decomposition = Composition(config).to(device), Decomposition(config).to(device)
    rng = np.random.default_rng(0)
    layout = build_layout(rng.normal(size=16), np.array([1, 10, 16]), window).to(device)
    leaves = torch.randn(16, 12, device=device, requires_grad=True)
    parameters = [*composition.parameters(), *decomposition.parameters()]
    upstream = torch.randn(16, 12, device=device)

    def run():
        torch.manual_seed(1)  # the same values are dropped
        chart = inside(
            layout, composition, leaves, temperature, recompute=recompute, whole_levels=False
        )
        rebuilt = outside(layout, decomposition, chart.inside_ae, recompute, whole_levels=False)
        loss = (rebuilt * upstream).sum() + chart.heights.sum() + chart.inside_ar.square().sum()
        into = torch.autograd.grad(loss, [leaves, *parameters])
        return chart.inside_ae, chart.heights, chart.scores, chart.weights, rebuilt, *into

    plain, fused = both(monkeypatch, kernels, run)
    assert_near(fused, plain, 2e-4)


def test_double_precision_stays_with_pytorch(monkeypatch) -> None:
    monkeypatch.setenv("GPST_KERNELS", "triton")
    assert use_triton(torch.zeros(1, device=DEVICE))
    assert not use_triton(torch.zeros(1, device=DEVICE, dtype=torch.float64))


def test_loops_on_one_thread_are_for_few_threads_and_single_precision(monkeypatch) -> None:
    monkeypatch.delenv("GPST_KERNELS", raising=False)
    threads = torch.get_num_threads()
    found = {}
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                module = fused_pieces(torch.zeros(1, dtype=dtype))
                found[count, dtype] = module and module.__name__
    finally:
        torch.set_num_threads(threads)
    ours = "gpst.kernels.cpu.pair"
    assert found.pop((1, torch.float32)) == found.pop((2, torch.float32)) == ours
    assert set(found.values()) == {None}


def test_an_unknown_choice_is_named(monkeypatch) -> None:
    monkeypatch.setenv("GPST_KERNELS", "cuda")
    with pytest.raises(
        ValueError, match="GPST_KERNELS='cuda': must be one of auto, torch, triton, numba"
    ):
        use_triton(torch.zeros(1))
    with pytest.raises(ConfigError, match="GPST_KERNELS='cuda'"):
        build_model(GPT2Config(vocab_size=8, bos_token_id=0))


class TestSelfCheck:
    def test_the_kernels_agree_here(self) -> None:
        from gpst.kernels.gpu.check import disagreement

        assert disagreement(DEVICE) == ""

    def test_a_wrong_kernel_is_found_and_said(self, monkeypatch, caplog) -> None:
        from gpst.kernels.gpu import pair

        right = pair.add_norm
        monkeypatch.setattr(pair, "add_norm", lambda x, y: right(x, 1.1 * y))
        with caplog.at_level(logging.WARNING, "gpst"):
            assert not gpst.kernels.choice._agrees(DEVICE)
        assert "norm differs from PyTorch by" in caplog.text

    def test_a_kernel_that_does_not_compile_is_not_used(self, monkeypatch, caplog) -> None:
        from gpst.kernels.gpu import pair

        def broken(*_):
            raise RuntimeError("no such\ninstruction")

        monkeypatch.setattr(pair, "pair_attention", broken)
        with caplog.at_level(logging.WARNING, "gpst"):
            assert not gpst.kernels.choice._agrees(DEVICE)
        assert "not used: RuntimeError: no such instruction" in caplog.text
