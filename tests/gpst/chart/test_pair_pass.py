"""The passes over the chart written out, against autograd through the modules themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gpst.chart import pair_pass
from gpst.chart.inside import inside
from gpst.chart.layout import build_layout
from gpst.chart.outside import outside, segment_softmax
from gpst.chart.pair_pass import PairPass
from gpst.chart.pairs import OutputGradients, Pairs
from gpst.config import CompositionConfig
from gpst.layers.composition import Composition, Decomposition, PairModel, affine_of

CONFIG = CompositionConfig(dim=6, num_heads=2, ffn_dim=8, num_layers=2, score_dim=4)


def make(kind: type[PairModel], dropout: float = 0.0, **changes) -> PairModel:
    torch.manual_seed(0)
    values = {**vars(CONFIG), "dropout": dropout, **changes}
    return kind(CompositionConfig(**values)).double()


def some_pairs(model: PairModel, size: int) -> Pairs:
    tables = torch.randn(2, 9, 6, dtype=torch.float64)
    first, second = torch.randint(0, 9, (2, size))
    side = torch.randint(0, 2, (size,)) if isinstance(model, Decomposition) else None
    sibling = None if side is None else second + 9 * (1 - side)
    return Pairs(tables[0], first, tables[1], second, side, sibling)


@pytest.mark.parametrize("kind", [Composition, Decomposition])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("chunk", [4, 512])
def test_a_level_is_the_module(kind, recompute: bool, chunk: int, monkeypatch) -> None:
    monkeypatch.setitem(pair_pass._PAIRS_A_CHUNK, "cpu", chunk)
    model = make(kind).eval()
    given = some_pairs(model, 11)
    first = given.first_table.clone().requires_grad_()
    second = given.second_table.clone().requires_grad_()
    extra = () if given.side is None else (given.side,)
    expected, expected_scores = model(first[given.first], second[given.second], *extra)
    maps = model.linear_maps()
    passage = PairPass(maps, first, True, recompute)
    if given.side is not None:
        passage.project_siblings(given.second_table)
    vectors, scores = passage.forward(given)
    torch.testing.assert_close(vectors, expected)
    torch.testing.assert_close(scores, expected_scores)

    cells = torch.randn(2, 3, 6, dtype=torch.float64)
    cell, weights = torch.randint(0, 3, (11,)), torch.rand(11, dtype=torch.float64)
    grad_scores = torch.randn(11, dtype=torch.float64)
    grad_first, grad_second = torch.zeros(2, 2, 9, 6, dtype=torch.float64)
    passage.backward(
        given, OutputGradients(cells, cell, weights, grad_scores), grad_first, grad_second
    )
    if given.side is not None:
        passage.siblings_backward(given.second_table, grad_second[0])
    wanted = [first, second, *model.parameters()]
    upstream = cells[:, cell] * weights[:, None]
    theirs = torch.autograd.grad(
        (expected, expected_scores), wanted, (upstream[0], grad_scores),
        retain_graph=True, allow_unused=True,
    )  # fmt: skip
    torch.testing.assert_close(grad_first[0], theirs[0])
    torch.testing.assert_close(grad_second[0], theirs[1])
    second_route = torch.autograd.grad((expected,), (first, second), (upstream[1],))
    torch.testing.assert_close(grad_first[1], second_route[0])
    torch.testing.assert_close(grad_second[1], second_route[1])
    assert passage.sums is not None
    found = zip(maps.tensors, passage.sums.gradients(maps), strict=True)
    by_id = {id(tensor): gradient for tensor, gradient in found}
    for (name, parameter), gradient in zip(model.named_parameters(), theirs[2:], strict=True):
        if name != "root":
            torch.testing.assert_close(by_id[id(parameter)], gradient, msg=name)


class Adapter(torch.nn.Module):
    """A linear layer with a product of two thin matrices beside it, as adapters are put in."""

    def __init__(self, base: torch.nn.Linear):
        super().__init__()
        self.base, self.bias, self.in_features = base, base.bias, base.in_features
        self.down = torch.nn.Linear(base.in_features, 2, bias=False, dtype=torch.float64)
        self.up = torch.nn.Linear(2, base.out_features, bias=False, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Doubled(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2.0 * weight


@pytest.mark.parametrize("way", ["adapter", "parametrization", "hook", "forward"])
@pytest.mark.parametrize("kind", [Composition, Decomposition])
def test_what_a_layer_computes_is_what_the_chart_computes(kind, way):
    """Whatever a user puts in, on or under the layers, values and gradients are the module's."""
    model = make(kind).eval()
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if not isinstance(layer, torch.nn.Linear):
                continue
            if way == "adapter":
                setattr(module, name, Adapter(layer))
            elif way == "parametrization":
                torch.nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
            elif way == "hook":
                layer.register_forward_hook(lambda _module, _inputs, output: 1.5 * output)
            else:
                layer.forward = lambda x, plain=layer.forward: plain(x) - 0.5 * plain(0.5 * x)
    given = some_pairs(model, 7)
    extra = () if given.side is None else (given.side,)
    maps = model.linear_maps()
    passage = PairPass(maps, given.first_table, True, False)
    if given.side is not None:
        passage.project_siblings(given.second_table)
    vectors, scores = passage.forward(given)
    expected, expected_scores = model(
        given.first_table[given.first], given.second_table[given.second], *extra
    )
    torch.testing.assert_close(vectors, expected)
    torch.testing.assert_close(scores, expected_scores)
    upstream, grad_scores = torch.randn_like(vectors), torch.randn_like(scores)
    into = torch.zeros(2, 1, 9, 6, dtype=torch.float64)
    one = torch.ones(7, dtype=torch.float64)
    grad_out = OutputGradients(upstream[None], torch.arange(7), one, grad_scores)
    passage.backward(given, grad_out, into[0], into[1])
    if given.side is not None:
        passage.siblings_backward(given.second_table, into[1, 0])
    assert passage.sums is not None
    wanted = {name: p for name, p in model.named_parameters() if name != "root"}
    found = torch.autograd.grad(
        maps.tensors, list(wanted.values()), passage.sums.gradients(maps), allow_unused=True
    )
    theirs = torch.autograd.grad(
        (expected, expected_scores), list(wanted.values()), (upstream, grad_scores)
    )
    for name, ours, gradient in zip(wanted, found, theirs, strict=True):
        torch.testing.assert_close(ours, gradient, msg=name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_not_rounded_beside_their_bias(dtype):
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 16).to(dtype)
    torch.nn.init.constant_(layer.bias, 3.0)
    layer.register_forward_hook(lambda *_: None)
    weight, bias = affine_of(layer)
    torch.testing.assert_close(bias, layer.bias, rtol=0, atol=0)
    atol = 2 * 3.0 * torch.finfo(dtype).eps / 1024  # the bias's rounding beside the long axes
    torch.testing.assert_close(weight, layer.weight, rtol=2 * torch.finfo(dtype).eps, atol=atol)


@pytest.mark.filterwarnings("ignore")  # torch.ao.quantization will move
def test_quantised_layers_take_part():
    model = make(Composition).float().eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    rounded = make(Composition).float().eval()
    for name, layer in rounded.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data = quantised.get_submodule(name).weight().dequantize()
    given = some_pairs(model, 11)
    tables = (table.float() for table in (given.first_table, given.second_table))
    given = given._replace(**dict(zip(("first_table", "second_table"), tables, strict=True)))
    vectors = []
    for each in (model, quantised, rounded):
        passage = PairPass(each.linear_maps(), given.first_table, False, False)
        vectors.append(passage.forward(given)[0])
    torch.testing.assert_close(vectors[1], vectors[2])
    assert not torch.allclose(vectors[1], vectors[0], atol=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_same_values_are_dropped_in_both_directions(recompute: bool, monkeypatch) -> None:
    """Finite differences through both passes with dropout on."""
    monkeypatch.setitem(pair_pass._PAIRS_A_CHUNK, "cpu", 4)
    composition, decomposition = make(Composition, 0.2), make(Decomposition, 0.2, num_layers=1)
    layout = build_layout(np.array([0.3, 0.1, 0.7, 0.2, 0.0, 0.4, 0.0]), np.array([5, 7]))
    upstream = torch.randn(7, 6, dtype=torch.float64)

    def loss(leaves: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        chart = inside(layout, composition, leaves, gradient_stop=False, recompute=recompute)
        rebuilt = outside(layout, decomposition, chart.inside_ae, recompute)
        return (rebuilt * upstream).sum() + chart.heights.sum()

    leaves = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    moved = [leaves, *composition.parameters(), *decomposition.parameters()]
    into = torch.autograd.grad(loss(leaves), moved)
    for tensor, gradient in zip(moved, into, strict=True):
        direction = torch.randn_like(tensor)
        with torch.no_grad():
            values = []
            for step in (1e-6, -2e-6):
                tensor.add_(direction, alpha=step)
                values.append(loss(leaves).item())
            tensor.add_(direction, alpha=1e-6)
        slope = (values[0] - values[1]) / 2e-6
        assert slope == pytest.approx((gradient * direction).sum().item(), rel=1e-5, abs=1e-7)
    assert loss(leaves).item() != loss(leaves.detach() * 1.0001).item()
    composition.eval(), decomposition.eval()
    without = loss(leaves).item()
    composition.train(), decomposition.train()
    assert loss(leaves).item() != pytest.approx(without)


def test_kept_and_recomputed_activations_give_the_same_bits() -> None:
    gradients = []
    for recompute in (False, True):
        model, down = make(Composition, 0.1).float(), make(Decomposition, 0.1).float()
        layout = build_layout(np.random.default_rng(0).normal(size=40), np.array([30, 40]))
        torch.manual_seed(1)
        leaves = torch.randn(40, 6, requires_grad=True)
        chart = inside(layout, model, leaves, recompute=recompute)
        rebuilt = outside(layout, down, chart.inside_ae, recompute)
        (chart.inside_ar.sum() + rebuilt.square().sum()).backward()
        parameters = [*model.parameters(), *down.parameters()]
        gradients.append([leaves.grad, *(p.grad for p in parameters)])
    for kept, again in zip(*gradients, strict=True):
        assert torch.equal(kept, again)


def test_half_precision_stays_near_and_scores_are_fp32() -> None:
    model = make(Composition).float().eval()
    layout = build_layout(np.random.default_rng(0).normal(size=40), np.array([30, 40]))
    leaves = torch.randn(40, 6)
    exact = inside(layout, model, leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = inside(layout, model, leaves)
    assert half.scores.dtype == half.weights.dtype == half.heights.dtype == torch.float32
    assert (half.inside_ae - exact.inside_ae).abs().mean() < 0.05
    torch.testing.assert_close(
        half.heights[layout.roots], exact.heights[layout.roots], rtol=0.05, atol=0.2
    )


def test_weights_of_high_and_low_scores_are_finite() -> None:
    scores = torch.tensor([500.0, 499.0, -500.0, -501.0, 3.0])
    weights = segment_softmax(scores, torch.tensor([0, 0, 1, 1, 2]), 3)
    one, other = 1 / (1 + math.exp(-1)), 1 / (1 + math.e)
    torch.testing.assert_close(weights, torch.tensor([one, other, one, other, 1.0]))
