"""The same step as the forecast's, measured."""

from __future__ import annotations

import statistics
import time

import torch

from forecast.text import batch_of
from gpst.batch import ContextBatch
from gpst.config import ModelConfig
from gpst.model.build import build_model
from gpst.model.losses import total_loss
from pipeline.config.sections import EngineConfig
from pipeline.engine.gpu import settle_arithmetic


def measured_ms(config: ModelConfig, contexts: list[list[int]], device: str, repeat: int) -> float:
    """Milliseconds of a micro-batch forward and backward with bf16 weights: the median of `repeat`
    after two that are not counted.

    The trees are those of a parser that has learnt nothing. PyTorch's switches become those of the
    engine (`create_engine`).
    """
    on_gpu = device == "cuda"
    settle_arithmetic(EngineConfig(precision="bf16" if on_gpu else "fp32"), torch.device(device))
    torch.manual_seed(0)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = build_model(config).to(device, dtype).train()
    batch = batch_of(contexts)
    if on_gpu:
        batch = batch.pin_memory()
    times = []
    for _ in range(repeat + 2):
        began = _now(device)
        _step(model, batch, device)
        times.append(_now(device) - began)
        model.zero_grad()
    return statistics.median(times[2:]) * 1e3


def _step(model: torch.nn.Module, batch: ContextBatch, device: str) -> None:
    moved = batch.to(device, non_blocking=True)
    total_loss(model(moved, noise=1.0).losses, batch.counts).backward()


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
