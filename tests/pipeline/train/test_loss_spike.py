"""The loss-spike guard: its average, its verdict, and a run with it that is stopped and resumed."""

from __future__ import annotations

import json
import math
import statistics
from types import SimpleNamespace

import pytest
import torch

from pipeline.train.loss_spike import LossAverage
from pipeline.train.step import _Guard


def averaged(losses, window):
    average = LossAverage()
    for loss in losses:
        average = average.with_loss(loss, window)
    return average


def test_the_first_window_has_the_plain_mean_and_variance():
    losses = [4.0, 1.0, 7.0, 2.0, 2.5]
    average = averaged(losses, window=5)
    assert average.count == 5
    assert average.mean == pytest.approx(statistics.fmean(losses))
    assert average.variance == pytest.approx(statistics.pvariance(losses))


def test_then_a_new_loss_weighs_one_over_the_window():
    average = LossAverage(count=8, mean=10.0, variance=4.0).with_loss(14.0, window=4)
    # Mixture of 3/4 old and 1/4 new: mean 11, variance 3/4 (4 + 1) + 1/4 (14 - 11)^2.
    assert average == LossAverage(9, 11.0, 0.75 * 5 + 0.25 * 9)


def test_a_spike_is_far_above_a_full_window():
    average = LossAverage(count=10, mean=5.0, variance=4.0)
    assert average.is_spike(11.1, deviations=3.0, window=10)
    assert not average.is_spike(10.9, deviations=3.0, window=10)
    assert not average.is_spike(-50.0, deviations=3.0, window=10)
    assert not average.is_spike(11.1, deviations=3.0, window=11)
    assert not average.is_spike(math.nan, deviations=3.0, window=10)
    assert not average.is_spike(math.inf, deviations=3.0, window=10)


def test_rounding_of_a_loss_that_never_moves_is_no_spike():
    average = averaged([0.1] * 50, window=10)
    assert not average.is_spike(math.nextafter(0.1, 1.0), deviations=3.0, window=10)
    assert average.is_spike(0.2, deviations=3.0, window=10)


def test_what_is_not_finite_leaves_the_average_as_it_is():
    average = LossAverage(3, 1.0, 2.0)
    assert average.with_loss(math.nan, 5) == average == average.with_loss(math.inf, 5)


def test_a_checkpoint_keeps_it_bit_for_bit():
    average = averaged([1 / 3, 2 / 7, 1e-3], window=2)
    assert LossAverage.from_dict(json.loads(json.dumps(average.to_dict()))) == average
    assert LossAverage.from_dict({}) == LossAverage()


# --- in a step


class TwoRanks:
    """The other rank has the same loss."""

    def sum(self, values):
        return values * 2


def guard(average, deviations=3.0, window=4):
    train = SimpleNamespace(spike_deviations=deviations, spike_window_steps=window)
    return _Guard(SimpleNamespace(train=train), average, TwoRanks())  # type: ignore[arg-type]


def test_a_step_is_judged_by_the_loss_of_all_ranks_and_micro_batches():
    full = LossAverage(4, 10.0, 1.0)
    judge = guard(full)
    judge.add(torch.tensor(2.5))
    judge.add(torch.tensor(3.5))
    assert (judge.verdict(), judge.spike) == (1.0, None)  # 2 x 6 = 12
    assert judge.average == full.with_loss(12.0, 4)
    judge = guard(full)
    judge.add(torch.tensor(6.6))  # 13.2
    assert math.isnan(judge.verdict())
    assert judge.spike == pytest.approx(13.2)
    assert judge.average == full  # a spike does not count in it


def test_without_the_option_nothing_is_judged():
    judge = guard(LossAverage(9, 0.0, 0.0), deviations=None)
    judge.add(torch.tensor(1e9))
    assert (judge.verdict(), judge.spike, judge.average.count) == (1.0, None, 9)
