"""A training step on a GPU, foreseen without one: waits, copies, devices, launches."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from forecast import measuring
from forecast.gpus import A100, Cost, seconds
from forecast.kernels_written import cost_of_call
from forecast.recording import GPU, recording
from forecast.step import Forecast, forecast
from forecast.text import batch_of, boundary_scores, real_contexts
from stepping import load_model_config, partner

from gpst.kernels.gpu.cross_entropy import _cross_entropy
from pipeline.config.sections import EngineConfig
from pipeline.cost.activations import activation_bytes

HOME = Path(__file__).parents[2]
CONTEXTS = [[9, 3, 1, 14], [6, 2, 5]]
MOST_LAUNCHES = {"gpst": 680, "recomputed": 760, "gpt2": 190}
"""Of a step on these contexts, `gpst_tiny`: a regression is seen here."""
STEPS = ["gpst", "gpt2", "recomputed"]


@cache
def step(name: str) -> Forecast:
    config = load_model_config(str(HOME / "configs/model/gpst_tiny.yaml"), 64)
    batch = batch_of(CONTEXTS)
    scores = boundary_scores(batch, "random")
    again = frozenset({"composition", "generator"}) if name == "recomputed" else frozenset()
    return forecast(partner(config) if name == "gpt2" else config, batch, scores, again)


@pytest.mark.parametrize("name", STEPS)
def test_the_host_waits_once_for_gpst_and_never_for_gpt2(name: str) -> None:
    waits = step(name).record.waits
    assert len(waits) == (name != "gpt2")
    for wait in waits:
        assert wait.name == "_to_copy"
        assert wait.place.line.startswith("gpst/model/gpst.py:")  # GPSTModel.layout


@pytest.mark.parametrize("name", STEPS)
def test_one_device_and_copies_that_nobody_waits_for(name: str) -> None:
    record = step(name).record
    assert record.mixed == []
    assert record.pageable == []
    assert len(record.copies) >= 2  # the tokens, their places


@pytest.mark.parametrize("name", STEPS)
def test_no_more_launches_than_before(name: str) -> None:
    launches = step(name).launches
    assert 0.9 * MOST_LAUNCHES[name] <= launches <= MOST_LAUNCHES[name], launches


def test_parts_add_up_and_a_slow_host_takes_longer() -> None:
    found = step("gpst")
    low, high = found.seconds(A100)
    assert found.gpu_seconds(A100) <= low < high
    parts = found.by_part(A100)
    assert {"parser", "parser loss", "inside", "outside", "decode", "generator"} <= set(parts)
    assert sum(row[0] + row[1] for row in parts.values()) == found.launches
    assert min(parts["inside"][:2]) > 0
    assert min(parts["outside"][:2]) > 0


RECOMPUTED = [(), ("composition",), ("composition", "generator")]


@cache
def real_step(
    recomputed: tuple[str, ...], vocab_size: int = 4096, num_contexts: int = 2
) -> tuple[Forecast, int]:
    """A step on contexts of text, and its plan of memory."""
    config = load_model_config(str(HOME / "configs/model/gpst_tiny.yaml"), vocab_size)
    batch = batch_of(real_contexts(num_contexts))
    found = forecast(config, batch, boundary_scores(batch, "random"), frozenset(recomputed))
    planned = activation_bytes(config, batch, "bf16", recomputed, device_type="cuda")
    return found, planned.total


@pytest.mark.parametrize("recomputed", RECOMPUTED)
@pytest.mark.parametrize(
    ("vocab_size", "num_contexts", "rel"),
    [(4096, 2, 0.05), (50257, 8, 0.01)],
    ids=["one chunk", "chunks of logits"],
)
def test_the_plan_of_memory_is_what_the_kernels_keep(
    recomputed: tuple[str, ...], vocab_size: int, num_contexts: int, rel: float
) -> None:
    found, planned = real_step(recomputed, vocab_size, num_contexts)
    assert planned == pytest.approx(found.peak - found.weights, rel=rel)


def test_memory_is_counted_once() -> None:
    weight = torch.empty(3, 4, device="meta")
    with recording(lambda source: source, [weight]) as record:
        assert record.held == record.peak == 512
        transposed = weight.T
        assert record.held == 512
        added = transposed + 1
        assert record.held == 1024
        del added
    assert (record.held, record.peak) == (512, 1024)


def test_recomputing_takes_less_memory_more_time_and_hardly_more_launches() -> None:
    kept, again = (real_step(recomputed)[0] for recomputed in RECOMPUTED[:2])
    assert again.peak < 0.7 * kept.peak
    assert kept.gpu_seconds(A100) < again.gpu_seconds(A100) < 1.3 * kept.gpu_seconds(A100)
    assert kept.launches < again.launches < 1.1 * kept.launches


def test_what_is_wrong_is_seen() -> None:
    """Waits, mixed devices, pageable copies, and memory while it is alive."""
    with recording(lambda source: torch.zeros(source.shape)) as record:
        x = torch.zeros(4, 128, device="cuda")
        assert x.device == GPU
        assert x.is_cuda
        held = record.held
        x.sum().item()
        x[x > 0]
        x.cpu()
        assert len(record.waits) == 3
        assert record.mixed == []
        x.add(torch.ones(4, 128))
        assert len(record.mixed) == 1
        torch.ones(3).to(x.device)
        torch.ones(3).pin_memory().to(x.device)
        assert len(record.pageable) == 2
        torch.ones(3).pin_memory().to(x.device, non_blocking=True)
        assert len(record.pageable) == 2 < len(record.copies)
        record.peak = record.held = held
        y = torch.zeros(1000, device="cuda")
        del y
        assert (record.held, record.peak) == (held, held + 4096)
        launches = record.launches
        x.view(-1)[3:].unsqueeze(0)
        assert record.launches == launches
        torch.mm(x, x.T)
        assert record.launches == launches + 1
        assert record.events[-1].cost.flops == 2 * 4 * 4 * 128


def test_the_slowest_of_arithmetic_and_traffic_counts() -> None:
    traffic = seconds(Cost(1, bytes=2.039e9), A100)
    assert traffic == pytest.approx(1e-3 / A100.memory_share, rel=0.01)
    product = Cost(1, bytes=1.0, flops=312e9, kind="product")
    assert seconds(product, A100) == pytest.approx(1e-3 / A100.product_share, rel=0.01)
    assert seconds(Cost(1), A100) == pytest.approx(3e-6)
    assert seconds(Cost(0), A100) == 0


def test_the_batches_are_of_real_text() -> None:
    contexts = real_contexts(41)
    assert contexts[40] == contexts[0]
    assert all(900 < sum(context) <= 1024 for context in contexts)
    batch = batch_of(contexts[:2])
    scores = boundary_scores(batch, "right-branching")
    for end, length in zip(batch.sentence_ends, batch.sentence_lengths, strict=True):
        assert (np.diff(scores[end - length : end]) < 0).all()


@pytest.mark.parametrize(("gradient", "passes"), [(False, 1), (True, 3)])
def test_the_loss_of_the_vocabulary_passes_over_its_logits(gradient: bool, passes: int) -> None:
    """Its kernel reads them once, and for the gradient once more before it writes it."""
    rows, vocab = 7, 300
    values = torch.zeros(rows, vocab, dtype=torch.bfloat16), torch.zeros(rows, dtype=torch.int64)
    arguments = (*values, torch.zeros(rows), vocab, 512, gradient)
    named = dict(zip(_cross_entropy.arg_names, arguments, strict=True))
    cost = cost_of_call("_cross_entropy", named, (rows,))
    assert cost.launches == 1
    assert cost.bytes == passes * 2 * rows * vocab + rows * (8 + 4)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_is_measured_with_the_engines_arithmetic(device: str, monkeypatch) -> None:
    """Before there is a model: as `create_engine`, which has cuDNN's attention off on a GPU."""
    settled = []

    def build(config: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(measuring, "settle_arithmetic", lambda *args: settled.append(args))
    monkeypatch.setattr(measuring, "build_model", build)
    config = load_model_config(str(HOME / "configs/model/gpst_tiny.yaml"), 64)
    with pytest.raises(InterruptedError):
        measuring.measured_ms(config, [[3, 2]], device, 1)
    precision = "bf16" if device == "cuda" else "fp32"
    assert settled == [(EngineConfig(precision=precision), torch.device(device))]
