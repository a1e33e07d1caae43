"""What PyTorch is told before a model trains: how a GPU may compute."""

import os

import torch

from pipeline.config.sections import EngineConfig


def settle_arithmetic(engine: EngineConfig, device: torch.device) -> None:
    """Sets PyTorch's switches for this process.

    On a GPU, fp32 products may round their factors to TF32 (10 bits; sums stay fp32), and cuDNN's
    attention is off: it would be planned anew for every length of a batch. With
    `engine.deterministic` sums have one order: the same program on the same kind of device gives
    the same bits.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_cudnn_sdp(False)
    if engine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by the first product
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # What has no deterministic form warns, and names itself.
    torch.use_deterministic_algorithms(engine.deterministic, warn_only=True)
