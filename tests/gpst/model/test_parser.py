"""The noise on the parser's scores."""

from __future__ import annotations

import math

import pytest
import torch

from gpst.model.parser import add_noise

EULER = 0.5772156649015329


@pytest.mark.parametrize("coefficient", [1.0, 0.25])
def test_noise_is_gumbel(coefficient):
    """Gumbel(0, 1) has mean 0.577 and variance pi^2 / 6, and its long tail is above."""
    torch.manual_seed(0)
    scores = torch.full((200_000,), 3.0)
    noise = (add_noise(scores, coefficient) - scores) / coefficient
    assert noise.mean().item() == pytest.approx(EULER, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.03)
    # P(noise <= x) = exp(-exp(-x))
    for x in (-1.0, 0.0, 2.0):
        share = (noise <= x).float().mean().item()
        assert share == pytest.approx(math.exp(-math.exp(-x)), abs=0.005)


def test_no_noise_leaves_the_scores_and_the_random_numbers_alone():
    scores = torch.randn(5)
    state = torch.random.get_rng_state()
    assert add_noise(scores, 0.0) is scores
    assert torch.equal(torch.random.get_rng_state(), state)
