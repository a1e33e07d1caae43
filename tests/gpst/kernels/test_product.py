"""Products by oneDNN against PyTorch's, values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpst.kernels import product as products
from gpst.kernels.product import Linear, add_product, pays, product

SHAPES = [(64, 64, 5), (128, 192, 64), (700, 320, 310)]
"""(rows, inputs, outputs): recurring ones, and a large one of odd sizes."""


@pytest.fixture(autouse=True)
def _on_any_cpu(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", torch.backends.mkldnn.is_available)
    monkeypatch.delenv("GPST_KERNELS", raising=False)


def assert_near(found, expected) -> None:
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_any_layout(shape) -> None:
    rows, inputs, outputs = shape
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    expected = x @ weight.T
    assert pays(x, weight)
    assert_near(product(x, weight, bias), expected + bias)
    assert_near(product(x.T.contiguous().T, weight.T.contiguous().T), expected)
    wide_x, wide_weight = torch.randn(rows, inputs + 7), torch.randn(outputs, inputs + 3)
    part = product(wide_x[:, 3 : inputs + 3], wide_weight[:, :inputs])
    assert_near(part, wide_x[:, 3 : inputs + 3] @ wide_weight[:, :inputs].T)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_of_a_weight_is_added(shape) -> None:
    rows, inputs, outputs = shape
    torch.manual_seed(0)
    into, x, total = (
        torch.randn(rows, outputs),
        torch.randn(rows, inputs),
        torch.ones(outputs, inputs),
    )
    add_product(total, into, x)
    assert_near(total, 1.0 + into.T @ x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("summed", [True, False])
def test_the_layer_is_a_linear_layer(shape, bias: bool, summed: bool) -> None:
    rows, inputs, outputs = shape
    torch.manual_seed(0)
    ours = Linear(inputs, outputs, bias)
    plain = nn.Linear(inputs, outputs, bias)
    plain.load_state_dict(ours.state_dict())
    upstream = torch.randn(2, rows, outputs)
    results = []
    for layer in (ours, plain):
        x = torch.randn(2, rows, inputs, generator=torch.Generator().manual_seed(1))
        x.requires_grad_()
        out = layer(x)
        (out.sum() if summed else (out * upstream).sum()).backward()
        results.append([out, x.grad, *(p.grad for p in layer.parameters())])
    for found, expected in zip(*results, strict=True):
        assert_near(found, expected)
    assert "_Linear" in type(ours(x).grad_fn.next_functions[0][0]).__name__


def test_only_where_it_is_wanted_and_fits(monkeypatch) -> None:
    x, weight = torch.randn(64, 64), torch.randn(8, 64)
    assert pays(x, weight)
    assert not pays(x.double(), weight.double())
    assert not pays(x.bfloat16(), weight.bfloat16())
    assert not pays(x[:63], weight)  # small, and of a size that does not recur
    assert not pays(x[:0], weight)
    monkeypatch.setenv("GPST_KERNELS", "torch")
    assert not pays(x, weight)
    torch.testing.assert_close(product(x, weight), F.linear(x, weight), rtol=0, atol=0)


def test_the_graph_is_the_same_for_any_number_of_rows(monkeypatch) -> None:
    """Ranks must reach their parameters in one order (test_pipe_engine shows what happens else)."""
    layer = Linear(64, 64)
    for kernels in ("auto", "torch"):
        monkeypatch.setenv("GPST_KERNELS", kernels)
        for rows in (0, 1, 64, 1000):
            out = layer(torch.randn(rows, 64, requires_grad=True))
            assert "_Linear" in type(out.grad_fn.next_functions[0][0]).__name__
            out.sum().backward()


def test_half_precision_stays_with_pytorch() -> None:
    layer, x = Linear(64, 64), torch.randn(64, 64, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_a_sum_in_higher_precision_than_its_products() -> None:
    torch.manual_seed(0)
    into, x, total = torch.randn(64, 8).bfloat16(), torch.randn(64, 4).bfloat16(), torch.ones(8, 4)
    add_product(total, into, x)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, 1.0 + (into.T @ x).float())
