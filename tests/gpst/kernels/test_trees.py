"""Kernels of trees and of the vocabulary's loss, in Triton's interpreter or on a GPU, against
PyTorch's form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gpst.kernels.choice
from gpst.chart.decode import decode
from gpst.chart.layout import build_layout
from gpst.kernels.gpu import trees
from gpst.model import losses
from gpst.model.losses import vocabulary_loss
from gpst.model.parser import split_loss

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _decide_anew():
    gpst.kernels.choice._decide.cache_clear()
    yield
    gpst.kernels.choice._decide.cache_clear()


@pytest.mark.parametrize("window", [1, 2, 3])
def test_trees_and_their_likelihood(monkeypatch, window: int) -> None:
    monkeypatch.setattr(trees, "_BLOCK", 4)  # levels of several blocks
    rng = np.random.default_rng(window)
    ends = np.cumsum([1, 7, 2, 11, 1])
    layout = build_layout(rng.normal(size=ends[-1]), ends, window).to(DEVICE)
    # Whole numbers: many edges of a cell are equally good, and the smaller split wins.
    edge_scores = torch.from_numpy(rng.integers(0, 2, len(layout.left))).float().to(DEVICE)
    scores = torch.from_numpy(rng.normal(size=ends[-1]).astype(np.float32)).to(DEVICE)
    found = {}
    for kernels in ("torch", "triton"):
        monkeypatch.setenv("GPST_KERNELS", kernels)
        leaf = scores.clone().requires_grad_()
        induced = decode(layout, edge_scores)
        loss = split_loss(leaf, layout, induced)
        (into,) = torch.autograd.grad(0.3 * loss, leaf)
        found[kernels] = induced, loss, into
    (theirs, *plain), (ours, *fused) = found["torch"], found["triton"]
    for name in ("best_edge", "marked", "nodes"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for one, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_sentences_of_one_token_have_no_splits(monkeypatch) -> None:
    monkeypatch.setenv("GPST_KERNELS", "triton")
    layout = build_layout(np.zeros(3), np.array([1, 2, 3])).to(DEVICE)
    induced = decode(layout, torch.zeros(0, device=DEVICE))
    assert induced.nodes.tolist() == [0, 1, 2]
    leaf = torch.zeros(3, device=DEVICE, requires_grad=True)
    loss = split_loss(leaf, layout, induced)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, leaf)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("vocab", [5, 40])
def test_the_vocabulary_loss(monkeypatch, vocab: int) -> None:
    monkeypatch.setattr(losses, "chunk_rows", lambda *_: 3)
    monkeypatch.setattr("gpst.kernels.gpu.cross_entropy._BLOCK", 16)
    torch.manual_seed(0)
    features, embedding = 3 * torch.randn(7, 8, device=DEVICE), torch.randn(vocab, 8, device=DEVICE)
    targets = torch.randint(0, vocab, (7,), device=DEVICE)
    found = {}
    for kernels in ("torch", "triton"):
        monkeypatch.setenv("GPST_KERNELS", kernels)
        x, table = features.clone().requires_grad_(), embedding.clone().requires_grad_()
        loss = vocabulary_loss(x, table, targets)
        with torch.no_grad():
            torch.testing.assert_close(vocabulary_loss(x, table, targets), loss)
        found[kernels] = [loss, *torch.autograd.grad(0.5 * loss, [x, table])]
    for ours, theirs in zip(found["triton"], found["torch"], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
