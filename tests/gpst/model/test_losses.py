"""The losses against plain forms, values and gradients in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gpst.batch import BatchCounts
from gpst.model import losses
from gpst.model.losses import LossTerm, height_loss, total_loss, vocabulary_loss


@pytest.mark.parametrize("chunk", [1, 7 * 3, 7 * 100])
def test_vocabulary_loss_is_the_cross_entropy(chunk, monkeypatch):
    monkeypatch.setitem(losses._CHUNK_LOGITS, "cpu", chunk)
    torch.manual_seed(0)
    features = torch.randn(10, 5, dtype=torch.float64, requires_grad=True)
    embedding = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (10,))
    expected = F.cross_entropy(features @ embedding.T, targets, reduction="sum")
    wanted = torch.autograd.grad(3.0 * expected, (features, embedding))
    actual = vocabulary_loss(features, embedding, targets)
    found = torch.autograd.grad(3.0 * actual, (features, embedding))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    with torch.no_grad():
        assert vocabulary_loss(features, embedding, targets).item() == pytest.approx(actual.item())


def test_height_loss_by_hand():
    heights, lengths = torch.tensor([14.0, 17.0, 20.0]), torch.tensor([20, 40, 25])
    assert height_loss(heights, lengths, 15).item() == pytest.approx(2 / 40 + 5 / 25)


def test_total_loss_is_a_sum_of_means():
    counts = BatchCounts(tokens=10, sentences=4)
    terms = {
        "token": LossTerm(torch.tensor(32.0), "actions"),
        "parser": LossTerm(torch.tensor(12.0), "splits"),
        "height": LossTerm(torch.tensor(2.0), "sentences"),
    }
    assert total_loss(terms, counts).item() == pytest.approx(32 / 16 + 12 / 6 + 2 / 4)
    only_single_tokens = BatchCounts(tokens=4, sentences=4)
    term = LossTerm(torch.tensor(0.0), "splits")
    assert total_loss({"parser": term}, only_single_tokens).item() == 0.0
