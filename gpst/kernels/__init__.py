"""Kernels under the models: fused forms for CPUs and GPUs, each with a plain PyTorch form.

GPST_KERNELS chooses for the composition model: `torch`, `triton`, or `auto` (default), which takes
Triton on a CUDA device once its kernels have agreed with PyTorch there on a small example.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os

import torch

CHOICES = ("auto", "torch", "triton")


def use_triton(x: torch.Tensor) -> bool:
    """Whether kernels on this tensor are those in Triton; they compute in fp32, never in fp64.

    Raises:
        ValueError: GPST_KERNELS is none of the choices, or asks for a Triton that is not there.
    """
    if x.dtype == torch.float64:
        return False
    return _decide(os.environ.get("GPST_KERNELS", "auto"), x.device)


@functools.cache
def _decide(choice: str, device: torch.device) -> bool:
    if choice not in CHOICES:
        raise ValueError(f"GPST_KERNELS={choice!r}: must be one of {', '.join(CHOICES)}")
    present = importlib.util.find_spec("triton") is not None
    if choice == "triton":
        if not present:
            raise ValueError("GPST_KERNELS=triton: the package triton is not installed")
        return True
    return choice == "auto" and device.type == "cuda" and present and _agrees(device)


def _agrees(device: torch.device) -> bool:
    from gpst.kernels.check import disagreement

    try:
        fault = disagreement(device)
    except Exception as error:
        fault = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if fault:
        logging.getLogger("gpst").warning("Triton's kernels are not used: %s", fault)
    return not fault
