"""Where values are dropped: zeros counted on the way through each form of the model.

Each rate of the configuration has a value of its own here, so that none can stand for another.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pytest
import torch
from shares_of_zeros import Counted
from slow_gpst import Dropped, pair, pair_score
from torch import Tensor

import gpst.kernels.choice
from gpst.chart import pair_pass
from gpst.chart.inside import inside
from gpst.chart.layout import build_layout
from gpst.chart.outside import outside
from gpst.chart.pair_pass import PairPass
from gpst.chart.pairs import OutputGradients, Pairs
from gpst.config import CompositionConfig
from gpst.kernels import pair as pieces
from gpst.layers import composition as module_form
from gpst.layers.composition import Composition, Decomposition, PairModel

RATE = 0.2
PAIRS, TOLERANCE = 150, 0.03
INTERPRETED_PAIRS = 40  # the interpreter of GPU kernels takes its time
SIZES = CompositionConfig(
    dim=24, num_heads=6, ffn_dim=32, num_layers=2, num_decomposition_layers=2, score_dim=8,
    dropout=RATE,
)  # fmt: skip


def make(kind: type[PairModel], **changes) -> PairModel:
    torch.manual_seed(0)
    model = kind(dataclasses.replace(SIZES, **changes))
    for parameter in model.parameters():
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    return model


def as_siblings(second: Tensor, side: Tensor | None, num_cells: int) -> Tensor | None:
    return None if side is None else second + num_cells * (1 - side)


def passage_of(model: PairModel, pairs: Pairs, recompute: bool = False) -> PairPass:
    passage = PairPass(model.linear_maps(), pairs.first_table, True, recompute)
    if pairs.side is not None:
        passage.project_siblings(pairs.second_table)
    return passage


def expected_shares(rate: float) -> dict[str, float]:
    weights = ("weights on vector 0", "weights on vector 1")
    dropped = (*weights, "attention residual", "activation", "feed-forward residual")
    whole = {"score MLP": 0.0, "input": 0.0, "sum": 0.0}
    return dict.fromkeys(dropped, rate) | {"weights on both": rate**2} | whole


@pytest.mark.parametrize(
    ("kernels", "training"),
    [
        ("torch", True),
        ("torch", False),
        ("numba", True),
        ("numba", False),
        # test_pair_fused.py: Triton's drop what PyTorch's do. Their interpreter takes its time.
        pytest.param("triton", True, marks=pytest.mark.slow),
        pytest.param("triton", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", [Composition, Decomposition])
def test_zeros_of_the_passes_over_the_chart(kernels, training: bool, kind, monkeypatch) -> None:
    monkeypatch.setenv("GPST_KERNELS", kernels)
    gpst.kernels.choice._decide.cache_clear()
    counted = Counted()
    right_gelu, right_norm, right_attention = pieces.gelu, pieces.add_norm, pieces.pair_attention
    norms = iter(range(1000))

    def gelu(x: Tensor, *args) -> tuple[Tensor, Tensor | None]:
        value, slope = right_gelu(x, *args)
        counted.add("activation" if x.shape[-1] == SIZES.ffn_dim else "score MLP", value)
        assert slope is None or torch.equal(slope == 0, value == 0)
        return value, slope

    def add_norm(x: Tensor, y: Tensor):
        number = next(norms) % (2 * SIZES.num_layers + 1)
        branch = ("attention residual", "feed-forward residual")[number % 2]
        counted.add("sum" if number == 2 * SIZES.num_layers else branch, y)
        counted.add("input", x)
        return right_norm(x, y)

    def attention(packed: Tensor, num_heads: int, *args):
        mixed, weight = right_attention(packed, num_heads, *args)
        counted.add_weights(packed, mixed, num_heads)
        return mixed, weight

    for name, function in (("gelu", gelu), ("add_norm", add_norm), ("pair_attention", attention)):
        monkeypatch.setattr(pieces, name, function)
    model = make(kind).train(training)
    tables = torch.randn(2, 50, SIZES.dim)
    number = INTERPRETED_PAIRS if kernels == "triton" else PAIRS
    first, second = torch.randint(0, 50, (2, number))
    side = torch.randint(0, 2, (number,)) if kind is Decomposition else None
    given = Pairs(tables[0], first, tables[1], second, side, as_siblings(second, side, 50))
    scores = passage_of(model, given).forward(given)[1]
    expected = expected_shares(RATE if training else 0.0)
    assert counted.shares == pytest.approx(expected, abs=TOLERANCE * (PAIRS / number) ** 0.5)
    assert [place for place, share in counted.shares.items() if share == 0] == [
        place for place in counted.shares if expected[place] == 0
    ]
    without = passage_of(model.eval(), given).forward(given)[1]
    assert torch.equal(scores, without)  # of the same vectors, whatever is dropped
    gpst.kernels.choice._decide.cache_clear()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [Composition, Decomposition])
def test_zeros_of_the_plain_modules(training: bool, kind, monkeypatch) -> None:
    counted = Counted()
    model = make(kind).train(training)
    before: list[Tensor] = []
    right_norm = module_form.plain_norm

    def plain_norm(x: Tensor) -> Tensor:
        number = len(before) - 1
        if number < 2 * SIZES.num_layers:
            branch = ("attention residual", "feed-forward residual")[number % 2]
            counted.add(branch, x - before[-1])
        before.append(right_norm(x))
        return before[-1]

    monkeypatch.setattr(module_form, "plain_norm", plain_norm)
    for layer in model.pair_layers:
        packed: list[Tensor] = []
        layer.value.register_forward_hook(lambda _, __, out, to=packed: to.append(out))
        layer.attention_out.register_forward_pre_hook(
            lambda _, given, to=packed: counted.add_weights(
                torch.cat((to[-1], to[-1], to[-1]), -1), given[0], SIZES.num_heads
            )
        )
        layer.ffn_out.register_forward_pre_hook(
            lambda _, given: counted.add("activation", given[0])
        )
    for *_, out in model.score.maps:
        out.register_forward_pre_hook(lambda _, given: counted.add("score MLP", given[0]))
    x = torch.randn(2, PAIRS, SIZES.dim)
    before.append(x)
    extra = (torch.randint(0, 2, (PAIRS,)),) if kind is Decomposition else ()
    _, scores = model(x[0], x[1], *extra)
    expected = expected_shares(RATE if training else 0.0)
    del expected["input"], expected["sum"]
    assert counted.shares == pytest.approx(expected, abs=TOLERANCE)
    before[1:] = []
    assert torch.equal(scores, model.eval()(x[0], x[1], *extra)[1])


def masks_of(drawn: list[list[Tensor]], num_layers: int) -> list[dict[str, Tensor]]:
    """Of each layer, (2, pairs, ...) masks from those that the chunks drew, two draws a layer."""
    layers: list[dict[str, list[Tensor]]] = [defaultdict(list) for _ in range(num_layers)]
    for number in range(0, len(drawn), 2):
        own = layers[number // 2 % num_layers]
        names = ("weights", "attended", "ffn", "inner")
        for name, mask in zip(names, [*drawn[number], *drawn[number + 1]], strict=True):
            own[name].append(mask if name == "weights" else mask.unflatten(0, (2, -1)))
    return [{name: torch.cat(parts, 1) for name, parts in own.items()} for own in layers]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", [Composition, Decomposition])
def test_the_same_masks_give_the_same_in_all_forms(kind, recompute: bool, monkeypatch) -> None:
    """The pass over a level, the module, and the recursion over single pairs, in float64."""
    monkeypatch.setitem(pair_pass._PAIRS_A_CHUNK, "cpu", 4)
    model = make(kind).double()
    drawn: list[list[Tensor]] = []
    right = pair_pass.keep_masks

    def keep_masks(*args):
        drawn.append(right(*args))
        return drawn[-1]

    monkeypatch.setattr(pair_pass, "keep_masks", keep_masks)
    tables = torch.randn(2, 9, SIZES.dim, dtype=torch.float64, requires_grad=True)
    first, second = torch.randint(0, 9, (2, 7))
    side = torch.randint(0, 2, (7,)) if kind is Decomposition else None
    sibling = as_siblings(second, side, 9)
    given = Pairs(tables[0].detach(), first, tables[1].detach(), second, side, sibling)
    passage = passage_of(model, given, recompute)
    vectors, scores = passage.forward(given)
    masks = masks_of(drawn, SIZES.num_layers)
    upstream, grad_scores = torch.randn_like(vectors), torch.randn_like(scores)
    into = torch.zeros(2, 1, 9, SIZES.dim, dtype=torch.float64)
    one = torch.ones(7, dtype=torch.float64)
    grad_out = OutputGradients(upstream[None], torch.arange(7), one, grad_scores)
    passage.backward(given, grad_out, into[0], into[1])
    passage.siblings_backward(given.second_table, into[1, 0])
    assert passage.sums is not None
    maps = model.linear_maps()
    found = zip(maps.tensors, passage.sums.gradients(maps), strict=True)
    by_id = {id(tensor): gradient for tensor, gradient in found}

    def recursion() -> tuple[Tensor, Tensor]:
        out, out_scores = [], []
        for e in range(7):
            x = [tables[0, first[e]], tables[1, second[e]]]
            roles = list(model.role if side is None else model.role[[0, 2 - int(side[e])]])
            dropped = [Dropped(**{name: mask[:, e] for name, mask in m.items()}) for m in masks]
            out.append(pair(model.pair_layers, x, roles, dropped))
            maps = list(model.score.maps)
            maps[1:] = maps[1:2] if side is None else [maps[2 - int(side[e])]]
            out_scores.append(pair_score(*(of_map(v) for of_map, v in zip(maps, x, strict=True))))
        return torch.stack(out), torch.stack(out_scores)

    def module() -> tuple[Tensor, Tensor]:
        order = (m[name] for m in masks for name in ("weights", "attended", "inner", "ffn"))
        with monkeypatch.context() as patch:
            patch.setattr(module_form.F, "dropout", lambda x, *_: x * next(order))
            extra = () if side is None else (side,)
            return model(tables[0, first], tables[1, second], *extra)

    wanted = {name: p for name, p in model.named_parameters() if name != "root"}
    for form in (recursion, module):
        expected, expected_scores = form()
        torch.testing.assert_close(vectors, expected)
        torch.testing.assert_close(scores, expected_scores)
        theirs = torch.autograd.grad(
            (expected, expected_scores), [tables, *wanted.values()], (upstream, grad_scores)
        )
        torch.testing.assert_close(into[:, 0], theirs[0])
        for (name, parameter), gradient in zip(wanted.items(), theirs[1:], strict=True):
            torch.testing.assert_close(by_id[id(parameter)], gradient, msg=name)


def test_inside_and_outside_draw_anew_in_each_step() -> None:
    model, other = make(Composition), make(Decomposition)
    layout = build_layout(np.random.default_rng(0).normal(size=12), np.array([12]))
    leaves = torch.randn(12, SIZES.dim)

    def rebuilt() -> Tensor:
        return outside(layout, other, inside(layout, model, leaves).inside_ae)

    torch.manual_seed(0)
    first, second = rebuilt(), rebuilt()
    torch.manual_seed(0)
    assert torch.equal(first, rebuilt())
    assert not torch.equal(first, second)
