"""Kernels of whole levels, in Triton's interpreter or on a GPU, against PyTorch's form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gpst.kernels.choice
from gpst.chart import fused_check, fused_passes, walk
from gpst.chart.inside import inside
from gpst.chart.layout import build_layout
from gpst.chart.outside import outside
from gpst.chart.pair_pass import PairPass
from gpst.config import CompositionConfig
from gpst.kernels.dropout import _random_bits, draw_seed, hash_keys
from gpst.layers.composition import Composition, Decomposition

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CASES = [(1, 1.0, 0.0, True), (2, 0.7, 0.2, True), (2, 1.0, 0.2, False)]
"""Window, temperature, dropout, gradient stop."""


@pytest.fixture(autouse=True)
def _decide_anew():
    gpst.kernels.choice._decide.cache_clear()
    yield
    gpst.kernels.choice._decide.cache_clear()


class HashedMasks:
    """Masks for PyTorch's form of one pass: those that the kernels draw."""

    def __init__(self, seed: int, rate: float, num_layers: int):
        self.key, self.other = map(np.uint32, hash_keys(seed))
        self.threshold = round(rate * 2**16)
        self.num_layers, self.draws, self.first = num_layers, 0, 0

    def draw(self, *shapes):
        layer, inner = divmod(self.draws % (2 * self.num_layers), 2)
        pairs = shapes[0][1] if not inner else shapes[0][0] // 2
        sites = (2,) if inner else (0, 1, 3)
        masks = [
            self.mask(4 * layer + site, shape, pairs)
            for site, shape in zip(sites, shapes, strict=True)
        ]
        self.draws += 1
        self.first += pairs * (self.draws % (2 * self.num_layers) == 0)
        return masks

    def mask(self, site: int, shape, pairs: int) -> torch.Tensor:
        rows = 2 * (self.first + np.arange(pairs)) + np.arange(2)[:, None]
        width = int(np.prod(shape)) // (2 * pairs)
        index = rows.reshape(-1, 1) * width + np.arange(width)
        other = np.uint32((int(self.other) + 977 * site) % 2**32)
        bits = np.array([_random_bits(np.uint32(i), self.key, other) for i in index.ravel()])
        keep = (bits & 0xFFFF) >= self.threshold
        scale = 2**16 / (2**16 - self.threshold)
        return torch.from_numpy(keep * scale).float().view(*shape).to(DEVICE)


def kept_by(output: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the pass that gave a tensor keeps for the way back."""
    node = output.grad_fn
    while not hasattr(node, "passage"):
        ((node, _), *_) = node.next_functions
    return node.passage._kept


@pytest.mark.parametrize(
    ("window", "temperature", "dropout", "stop"),
    [CASES[1], *(pytest.param(*case, marks=pytest.mark.slow) for case in (CASES[0], CASES[2]))],
)
def test_both_passes(
    monkeypatch, window: int, temperature: float, dropout: float, stop: bool
) -> None:
    """Values, gradients on both routes, weights and heights; some levels large, the rest walked."""
    torch.manual_seed(0)
    monkeypatch.setattr(walk, "LARGE", 2)
    config = CompositionConfig(
        dim=12, num_heads=3, ffn_dim=20, num_layers=2, score_dim=4, dropout=dropout
    )
    composition, decomposition = Composition(config).to(DEVICE), Decomposition(config).to(DEVICE)
    ends = np.array([1, 7, 9])
    layout = build_layout(np.random.default_rng(0).normal(size=9), ends, window).to(DEVICE)
    plan = walk.inside_walk(layout)
    assert plan.launches
    assert plan.groups >= 1
    leaves = torch.randn(9, 12, device=DEVICE, requires_grad=True)
    parameters = [*composition.parameters(), *decomposition.parameters()]
    upstream = torch.randn(9, 12, device=DEVICE)

    def run(kernels: str, recompute: bool = False) -> list[torch.Tensor]:
        monkeypatch.setenv("GPST_KERNELS", kernels)
        torch.manual_seed(1)
        chart = inside(layout, composition, leaves, temperature, stop, recompute)
        rebuilt = outside(layout, decomposition, chart.inside_ae, recompute)
        if recompute:
            assert kept_by(chart.inside_ae) == kept_by(rebuilt) == {}
        loss = (rebuilt * upstream).sum() + chart.heights.sum() + chart.inside_ar.square().sum()
        loss = loss + (chart.inside_ar[9:] ** 3).sum()
        into = torch.autograd.grad(loss, [leaves, *parameters])
        return [chart.inside_ae, chart.heights, chart.scores, chart.weights, rebuilt, *into]

    fused = run("triton")
    assert "FusedInside" in fused[0].grad_fn.name()
    for ours, theirs in zip(run("triton", recompute=True), fused, strict=True):
        assert torch.equal(ours, theirs)

    torch.manual_seed(1)
    seeds = [draw_seed(), draw_seed()]
    begin = PairPass.__init__

    def start(self, maps, *rest):
        begin(self, maps, *rest)
        if dropout:
            self._draw = HashedMasks(seeds.pop(0), dropout, len(maps.layers)).draw

    monkeypatch.setattr(PairPass, "__init__", start)
    plain = run("torch")
    for ours, theirs in zip(fused, plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_they_are_asked_for_on_a_small_chart(monkeypatch, caplog) -> None:
    """What a GPU is asked before its kernels are used; a wrong kernel is found and said."""
    monkeypatch.setenv("GPST_KERNELS", "triton")
    assert fused_check.disagreement(DEVICE) == ""
    right = fused_passes.collect
    monkeypatch.setattr(fused_passes, "collect", lambda *given: right(*given) or given[3].mul_(2))
    monkeypatch.setattr(fused_check, "requested", lambda: "auto")
    monkeypatch.setattr(fused_check, "_AGREED", {})
    with caplog.at_level("WARNING", "gpst"):
        assert not fused_check.levels_agree(DEVICE)
    assert "whole levels are not used: gradient of the tokens differs" in caplog.text
