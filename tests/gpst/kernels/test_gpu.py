"""On a GPU: the host waits for nothing in forward and backward (GPST: with a given layout)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from gpst.batch import ContextBatch
from gpst.chart.layout import build_layout
from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ParserConfig
from gpst.model.gpst import GPSTModel
from gpst.model.losses import total_loss

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CONFIG = GPSTConfig(
    vocab_size=512,
    bos_token_id=1,
    max_context_tokens=256,
    hidden_dim=64,
    num_heads=2,
    ffn_dim=128,
    num_type_layers=1,
    num_token_layers=1,
    composition=CompositionConfig(dim=32, num_heads=2, ffn_dim=64, num_layers=2, score_dim=32),
    parser=ParserConfig(dim=32, num_heads=2, ffn_dim=64, num_layers=1),
)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, whatever makes the host wait for the GPU raises RuntimeError."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def batch() -> ContextBatch:
    rng = np.random.default_rng(0)
    lengths = [[30, 1, 2, 40, 17], [60, 5, 5, 9], [1, 100]]
    contexts = [[rng.integers(0, 512, n).tolist() for n in row] for row in lengths]
    return ContextBatch.from_sentences(contexts).pin_memory()


def make_model(dtype: torch.dtype) -> GPSTModel:
    torch.manual_seed(0)
    return GPSTModel(CONFIG).to("cuda", dtype).train()


def step(model: GPSTModel, batch: ContextBatch, noise: float = 1.0, layout=None) -> torch.Tensor:
    torch.manual_seed(1)
    loss = total_loss(model(batch, noise=noise, layout=layout).losses, batch.counts)
    loss.backward()
    return loss.detach()


def test_the_test_sees_a_wait(batch):
    value = torch.ones(1, device="cuda")
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        value.item()
    model, moved = make_model(torch.float32), batch.to("cuda")
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        step(model, moved)  # it makes its own layout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [set(), {"composition", "generator"}])
def test_nothing_waits_after_the_plan(batch, dtype, checkpointing):
    model = make_model(dtype)
    model.activation_checkpointing = checkpointing
    step(model, batch.to("cuda"))  # compiles and loads what is needed the first time
    model.zero_grad()

    inside_word = np.arange(batch.num_tokens) % 3 == 1
    scores = np.random.default_rng(1).normal(size=batch.num_tokens)
    layout = build_layout(scores, batch.sentence_ends, inside_word=inside_word, pin=True)
    assert layout.integers.is_pinned()
    assert len(layout.cutting)  # splits that no tree may take are left out without waiting, too
    with no_waiting():
        loss = step(model, batch.to("cuda", non_blocking=True), layout=layout)
    assert torch.isfinite(loss).item()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_given_plan_gives_the_losses_of_the_own_one(batch):
    model = make_model(torch.float32).eval()
    moved = batch.to("cuda")
    layout = model.layout(moved, model.parser(moved).detach())
    own, given = step(model, moved, noise=0.0), step(model, moved, noise=0.0, layout=layout)
    torch.testing.assert_close(given, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [set(), {"generator"}])
def test_the_gpt2_baseline_waits_for_nothing(batch, dtype, checkpointing):
    pytest.importorskip("transformers")
    from gpst.model.gpt2 import GPT2Baseline

    sizes = {"vocab_size": 512, "bos_token_id": 1, "max_context_tokens": 256, "hidden_dim": 64}
    config = GPT2Config(**sizes, num_heads=2, ffn_dim=128, num_layers=2)
    model = GPT2Baseline(config).to("cuda", dtype).train()
    model.activation_checkpointing = checkpointing
    total_loss(model(batch.to("cuda")).losses, batch.counts).backward()  # loads what it needs
    with no_waiting():
        moved = batch.to("cuda", non_blocking=True)
        loss = total_loss(model(moved).losses, batch.counts)
        loss.backward()
    assert torch.isfinite(loss).item()


def test_deterministic_steps_have_the_same_bits(batch):
    """`engine.deterministic`."""
    gpu = pytest.importorskip("pipeline.engine.gpu")
    from pipeline.config.sections import EngineConfig

    def gradients() -> list[torch.Tensor]:
        model = make_model(torch.bfloat16)
        step(model, batch.to("cuda"))
        return [p.grad for p in model.parameters() if p.grad is not None]

    try:
        gpu.settle_arithmetic(EngineConfig(deterministic=True), torch.device("cuda"))
        first, second = gradients(), gradients()
    finally:
        gpu.settle_arithmetic(EngineConfig(), torch.device("cuda"))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
