"""Switches of PyTorch, which need no GPU to be set."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from pipeline.config.sections import EngineConfig
from pipeline.engine import engine
from pipeline.engine.gpu import settle_arithmetic


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_float32_matmul_precision(precision)
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_a_gpu_has_tf32_and_no_attention_of_cudnn() -> None:
    settle_arithmetic(EngineConfig(), torch.device("cpu"))
    assert torch.get_float32_matmul_precision() == "highest"
    settle_arithmetic(EngineConfig(), torch.device("cuda"))
    assert torch.get_float32_matmul_precision() == "high"
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_sums_in_one_order_where_the_config_says_so() -> None:
    settle_arithmetic(EngineConfig(deterministic=True), torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    settle_arithmetic(EngineConfig(), torch.device("cuda"))
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_engine_settles_them_before_deepspeed_starts(monkeypatch) -> None:
    def settle(*given: object) -> None:
        raise InterruptedError(*given)

    monkeypatch.setattr(engine, "settle_arithmetic", settle)
    config = SimpleNamespace(engine=EngineConfig(precision="bf16"))
    world = SimpleNamespace(device=torch.device("cpu"))
    with pytest.raises(InterruptedError) as given:
        engine.create_engine(torch.nn.Linear(1, 1), config, None, world)  # type: ignore[arg-type]
    assert given.value.args == (config.engine, world.device)
