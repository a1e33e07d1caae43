"""A layout that is given gives what the forward pass's own one gives; others are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slow_gpst import SlowLosses
from small_model import make_contexts, make_model

from gpst.batch import ContextBatch
from gpst.chart.layout import ChartLayout, build_layout
from gpst.model.gpst import GPSTModel
from gpst.model.losses import total_loss
from gpst.model.parser import add_noise

LENGTHS = [[5, 1, 7, 2], [1], [2, 8]]


def given_layout(
    model: GPSTModel, batch: ContextBatch, noise: float = 0.0, seed: int = 0
) -> ChartLayout:
    torch.manual_seed(seed)
    with torch.no_grad():
        return model.layout(batch, add_noise(model.parser(batch), noise))


def test_values_equal_the_slow_form():
    model, contexts = make_model(), make_contexts(LENGTHS)
    batch = ContextBatch.from_sentences(contexts)
    with torch.no_grad():
        found = model(batch, layout=given_layout(model, batch)).losses
        slow = SlowLosses(model, contexts)
        expected = slow.composition_side() | slow.auto_regression()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].sum, value, rtol=1e-10, atol=1e-10)


def test_losses_and_gradients_are_those_of_the_own_plan():
    model, batch = make_model(), ContextBatch.from_sentences(make_contexts(LENGTHS))
    results = []
    for layout in (None, given_layout(model, batch)):
        model.zero_grad()
        total_loss(model(batch, layout=layout).losses, batch.counts).backward()
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_parser_learns_at_its_present_scores():
    """A given layout changes which splits are likely, not the scores that they are scored with."""
    model, contexts = make_model(), make_contexts([[2, 1, 2]])
    batch = ContextBatch.from_sentences(contexts)
    layout = given_layout(model, batch)  # one split a sentence: the same layout for all scores
    with torch.no_grad():
        model.parser.dense.weight.normal_()
    found, expected = (model(batch, layout=p).losses["parser"].sum for p in (layout, None))
    assert torch.equal(found, expected)
    longer = ContextBatch.from_sentences(make_contexts([[12]]))
    other = given_layout(model, longer, noise=50.0, seed=3)
    losses = [model(longer, layout=p).losses["parser"] for p in (other, None)]
    assert losses[0].sum != losses[1].sum
    losses[0].sum.backward()
    assert model.parser.dense.weight.grad.abs().sum() > 0


def test_a_plan_of_another_batch_is_named():
    model = make_model()
    layout = given_layout(model, ContextBatch.from_sentences(make_contexts([[3, 5]])))
    other = "the plan is of another batch: "
    longer = ContextBatch.from_sentences(make_contexts([[3, 6]]))
    message = other + "of 8 tokens in 2 sentences, and this batch has 9 in 2"
    with pytest.raises(ValueError, match=message):
        model(longer, layout=layout)
    with pytest.raises(ValueError, match="this batch has 8 in 1"):
        model(ContextBatch.from_sentences(make_contexts([[8]])), layout=layout)
    message = other + "its sentence 0 has 3 tokens, and this batch's has 4"
    with pytest.raises(ValueError, match=message):
        model(ContextBatch.from_sentences(make_contexts([[4, 4]])), layout=layout)


def test_the_tensors_of_a_plan_are_one_and_move_together():
    scores, inside_word = np.random.default_rng(0).normal(size=14), np.arange(14) % 3 == 0
    layout = build_layout(scores, np.array([1, 9, 14]), inside_word=inside_word)
    names = [n for n, v in vars(layout).items() if isinstance(v, torch.Tensor) and n != "integers"]
    assert len(names) == 14
    assert all(len(getattr(layout, n)) for n in names)
    storage = layout.integers.untyped_storage().data_ptr()
    assert all(getattr(layout, n).untyped_storage().data_ptr() == storage for n in names)
    assert layout.to("cpu") is layout
    assert all(getattr(layout, n).data_ptr() % 16 == layout.integers.data_ptr() % 16 for n in names)
    moved = layout.to("meta")
    for name in names:
        there = getattr(moved, name)
        assert there.device.type == "meta"
        assert there.shape == getattr(layout, name).shape
        assert there.storage_offset() == getattr(layout, name).storage_offset()
