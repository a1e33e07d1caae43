"""What one optimizer step asks of the engine, micro-batch by micro-batch."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from gpst.model.losses import LossTerm
from pipeline.config.run import load_config
from pipeline.data.order import step_samples
from pipeline.engine.engine import Update
from pipeline.train.loss_spike import LossAverage
from pipeline.train.preflight import check_run
from pipeline.train.schedule import schedule
from pipeline.train.step import micro_seed, take_step

RANKS, ACCUMULATION, STEP = 2, 2, 3
SHARES = (2.0, 1.5)
"""This rank's parts of the global loss, by micro-step."""


class RecordingEngine:
    """Losses that are given; remembers what it is called with."""

    def __init__(self) -> None:
        self.rates: list[tuple[float, float]] = []
        self.calls: list[SimpleNamespace] = []
        self.backwards: list[float] = []

    def set_rates(self, rate: float, parser_rate: float) -> None:
        assert not self.calls  # before the first forward pass
        self.rates.append((rate, parser_rate))

    def forward(self, batch, counts, scale, noise, temperature):
        share = SHARES[len(self.calls)]
        self.calls.append(
            SimpleNamespace(
                batch=batch, counts=counts, scale=scale, noise=noise, temperature=temperature,
                random=torch.rand(()).item(),
            )
        )  # fmt: skip
        output = SimpleNamespace(
            losses={"token": LossTerm(torch.tensor(share), "tokens")},
            statistics={"height": LossTerm(torch.tensor(6.0), "sentences")},
            sizes={"cells": 10, "edges": 20, "edges_over_tokens": 4, "levels": 5},
        )
        return torch.tensor(share * scale), output

    def backward(self, loss: torch.Tensor) -> Update | None:
        self.backwards.append(loss.item())
        last = len(self.backwards) == ACCUMULATION
        return Update(True, 1.25) if last else None


@pytest.fixture
def checked(toy_run, tmp_path):
    run = toy_run(Path("unused"))
    run["structure"] = {"noise_start": 1.0, "noise_end": 0.0}
    run["train"] |= {"spike_deviations": 2.0, "spike_window_steps": 2}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return check_run(load_config(path), RANKS)


def step_with(checked: Any, rank: int = 1, **options: Any) -> tuple[RecordingEngine, Any]:
    engine = RecordingEngine()
    world: Any = SimpleNamespace(
        size=RANKS, rank=rank, device=torch.device("cpu"), sum=lambda values: values * RANKS
    )
    return engine, take_step(engine, checked, world, STEP, **options)  # type: ignore[arg-type]


def test_the_scale_undoes_the_means_over_ranks_and_micro_steps(checked):
    engine, _ = step_with(checked)
    assert checked.batch_shape.accumulation == ACCUMULATION
    assert [call.scale for call in engine.calls] == [RANKS * ACCUMULATION] * ACCUMULATION
    assert engine.backwards == [share * RANKS * ACCUMULATION for share in SHARES]


def test_every_micro_batch_gets_the_steps_schedule_and_the_global_counts(checked):
    engine, report = step_with(checked)
    now = schedule(checked.config, STEP)
    assert 0.0 < now.noise < 1.0
    assert engine.rates == [(now.learning_rate, now.parser_learning_rate)]
    samples = checked.source.sample(
        checked.config.seed, step_samples(STEP, checked.batch_shape.global_batch)
    )
    for call in engine.calls:
        assert (call.noise, call.temperature) == (now.noise, now.temperature)
        assert call.counts == checked.source.counts(samples) == report.counts
    assert report.step == STEP
    assert report.scheduled == now
    assert report.update == Update(True, 1.25)
    assert report.micro_batches == ACCUMULATION


def test_each_micro_batch_has_random_numbers_of_its_own(checked):
    for rank in range(RANKS):
        engine, _ = step_with(checked, rank)
        for micro_step, call in enumerate(engine.calls):
            torch.manual_seed(micro_seed(checked.config.seed, STEP, micro_step, rank))
            assert call.random == torch.rand(()).item()


def test_sums_are_over_the_micro_batches(checked):
    _, report = step_with(checked)
    assert report.sums.values["loss/token"].item() == sum(SHARES)
    assert report.sums.values["structure/height"].item() == 12.0
    assert report.sums.sizes == {"cells": 20, "edges": 40, "edges_over_tokens": 8, "levels": 10}
    assert report.sums.flops > 0


def test_the_ranks_micro_batches_are_the_global_batch(checked):
    found = [
        tuple(call.batch.tokens.tolist())
        for rank in range(RANKS)
        for call in step_with(checked, rank)[0].calls
    ]
    samples = step_samples(STEP, checked.batch_shape.global_batch).reshape(len(found), -1)
    expected = [
        tuple(
            checked.source.batch(checked.source.sample(checked.config.seed, part)).tokens.tolist()
        )
        for part in samples
    ]
    assert found == expected


def test_the_guard_judges_the_loss_of_all_ranks_and_stops_the_last_micro_step(checked):
    calm = LossAverage(count=5, mean=sum(SHARES) * RANKS, variance=0.01)
    engine, report = step_with(checked, spikes=calm)
    assert report.spike is None
    assert report.spikes == calm.with_loss(sum(SHARES) * RANKS, 2)
    assert all(math.isfinite(loss) for loss in engine.backwards)
    low = LossAverage(count=5, mean=1.0, variance=0.01)
    engine, report = step_with(checked, spikes=low)
    assert report.spike == sum(SHARES) * RANKS
    assert report.spikes == low
    assert math.isfinite(engine.backwards[0])
    assert math.isnan(engine.backwards[1])
