"""Schedules against hand-computed values."""

import pytest

from pipeline.config.run import load_config
from pipeline.train.schedule import learning_rate_factor, linear, num_warmup_steps, schedule


def factor(step, num_steps=10, warmup_fraction=0.2, decay="linear", final_fraction=0.0):
    return learning_rate_factor(
        step, num_steps, warmup_fraction=warmup_fraction, decay=decay, final_fraction=final_fraction
    )


def test_linear_decay_by_hand():
    found = [factor(step) for step in range(10)]
    assert found == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])


def test_cosine_decay_by_hand():
    assert factor(2, decay="cosine") == pytest.approx(1.0)
    assert factor(4, decay="cosine") == pytest.approx(0.5 + 0.5 * 0.5**0.5)
    assert factor(6, decay="cosine") == pytest.approx(0.5)


def test_constant_after_the_warm_up():
    assert [factor(step, decay="constant") for step in (0, 1, 2, 9)] == [0.5, 1.0, 1.0, 1.0]


def test_the_final_fraction_is_reached_after_the_last_step():
    assert factor(10, final_fraction=0.1) == pytest.approx(0.1)
    assert factor(6, final_fraction=0.1) == pytest.approx(0.55)
    assert factor(99, final_fraction=0.1, decay="cosine") == pytest.approx(0.1)


def test_no_step_is_wasted_at_rate_zero():
    for num_steps in (1, 2, 3, 100):
        for warmup_fraction in (0.0, 0.01, 0.5, 1.0):
            rates = [factor(s, num_steps, warmup_fraction) for s in range(num_steps)]
            assert min(rates) > 0
            assert max(rates) == 1.0


def test_warm_up_steps_are_rounded_up_but_not_for_rounding_errors():
    assert num_warmup_steps(100, 0.07) == 7
    assert num_warmup_steps(100, 0.071) == 8
    assert num_warmup_steps(100, 0.0) == 0
    assert num_warmup_steps(19_074, 0.01) == 191


def test_linear_takes_its_ends():
    assert [linear(1.0, 0.0, step, 5) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert linear(0.3, 0.7, 0, 1) == 0.3


def test_everything_of_a_run_at_once(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "{run_dir: r, model: {kind: gpst}, data: {path: d}, train: {num_steps: 11},"
        " optim: {learning_rate: 2, parser_learning_rate: 10, warmup_fraction: 0},"
        " structure: {noise_start: 1, noise_end: 0, temperature_start: 2, temperature_end: 1}}"
    )
    now = schedule(load_config(path), 5)
    assert now.learning_rate == pytest.approx(2 * 6 / 11)
    assert now.parser_learning_rate == pytest.approx(10 * 6 / 11)
    assert now.noise == pytest.approx(0.5)
    assert now.temperature == pytest.approx(1.5)
