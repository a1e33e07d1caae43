"""Draws against the probabilities that temperature, top_k and top_p leave, worked out by hand."""

import math

import pytest
import torch

from gpst.search.sampling import Sampling, drawn_from

PROBABILITIES = torch.tensor([0.1, 0.6, 0.3])
DRAWS = 20_000


def shares(sampling: Sampling) -> list[float]:
    """Of each token among many draws."""
    random = torch.Generator().manual_seed(0)
    drawn = drawn_from(PROBABILITIES.log().expand(DRAWS, -1), sampling, random)
    return (drawn.bincount(minlength=3) / DRAWS).tolist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"temperature": 1.0}, [0.1, 0.6, 0.3]),
        # Squares 0.01, 0.36, 0.09, which sum to 0.46.
        ({"temperature": 0.5}, [0.0217, 0.7826, 0.1957]),
        ({"temperature": 1.0, "top_k": 2}, [0.0, 2 / 3, 1 / 3]),
        # The first token reaches 0.6; the second is what brings it to 0.7.
        ({"temperature": 1.0, "top_p": 0.7}, [0.0, 2 / 3, 1 / 3]),
        ({"temperature": 1.0, "top_p": 0.5}, [0.0, 1.0, 0.0]),
        ({"temperature": 1.0, "top_p": 0.95}, [0.1, 0.6, 0.3]),
        ({"temperature": 0.0}, [0.0, 1.0, 0.0]),
        ({"temperature": 1e-20}, [0.0, 1.0, 0.0]),
        ({"temperature": 1e-320}, [0.0, 1.0, 0.0]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_should(values, expected):
    found = shares(Sampling(**values))
    assert found == pytest.approx(expected, abs=0.012)  # three deviations of 20,000 draws
    assert [share == 0 for share in found] == [share == 0 for share in expected]


@pytest.mark.parametrize("temperature", [-0.1, math.nan, math.inf])
def test_temperatures_that_are_none(temperature):
    with pytest.raises(ValueError, match=f"temperature: {temperature} is not allowed"):
        Sampling(temperature=temperature)
