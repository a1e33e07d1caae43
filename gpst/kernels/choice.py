"""Kernels under the models: fused forms for CPUs and GPUs, each with a plain PyTorch form.

GPST_KERNELS chooses for the composition model and for GELU: `torch`, `triton`, `numba`, or `auto`
(default): Triton on a CUDA device once its kernels have agreed with PyTorch there on a small
example (GELU in the Transformer blocks is always PyTorch's there); loops compiled by numba for fp32
on a CPU of one or two threads (they run on one; PyTorch's on all). `torch` keeps PyTorch's matrix
products, too (product.py).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from types import ModuleType

import torch

from gpst.config_reader import ConfigError
from gpst.jit.compiled import Compiled

CHOICES = ("auto", "torch", "triton", "numba")
_MOST_THREADS = 2
_FOLDERS = {"triton": "gpu", "numba": "cpu"}


def use_triton(x: torch.Tensor) -> bool:
    """Whether kernels on this tensor are those in Triton; they compute in fp32, never in fp64.

    Raises:
        ConfigError: GPST_KERNELS is none of the choices, or asks for a Triton that is not there.
    """
    return _choice(x) == "triton"


def use_numba(x: torch.Tensor) -> bool:
    """Whether kernels on this tensor are those in numba.

    Raises:
        ConfigError: as of `use_triton`.
    """
    return _choice(x) == "numba"


def fused_pieces(x: torch.Tensor) -> ModuleType | None:
    """The module whose forms of a pair layer's pieces fit this tensor; None for PyTorch's.

    Raises:
        ConfigError: as of `use_triton`.
    """
    choice = _choice(x)
    if choice == "torch":
        return None
    return importlib.import_module(f"gpst.kernels.{_FOLDERS[choice]}.pair")


def requested() -> str:
    """GPST_KERNELS, or auto.

    Raises:
        ConfigError: it is none of the choices.
    """
    choice = os.environ.get("GPST_KERNELS", "auto")
    if choice not in CHOICES:
        raise ConfigError(
            f"GPST_KERNELS={choice!r}: must be one of {', '.join(CHOICES)}; or unset it"
        )
    return choice


def _choice(x: torch.Tensor) -> str:
    """torch, triton or numba."""
    request = requested()
    if x.dtype == torch.float64 or (Compiled.interpreted and request == "auto"):
        return "torch"
    fits_numba = x.dtype == torch.float32 and x.device.type == "cpu"
    few_threads = torch.get_num_threads() <= _MOST_THREADS
    return _decide(request, x.device, fits_numba, few_threads)


@functools.cache
def _decide(request: str, device: torch.device, fits_numba: bool, few_threads: bool) -> str:
    spec = importlib.util.find_spec("triton")
    present = spec is not None and spec.origin is not None  # a folder of that name has none
    if request == "triton" and not present:
        raise ConfigError("GPST_KERNELS=triton: the package triton is not installed")
    on_gpu = request == "auto" and device.type == "cuda" and present
    if request == "triton" or (on_gpu and _agrees(device)):
        return "triton"
    if fits_numba and (request == "numba" or (request == "auto" and few_threads)):
        return "numba"
    return "torch"


def _agrees(device: torch.device) -> bool:
    from gpst.kernels.gpu.check import disagreement

    try:
        fault = disagreement(device)
    except Exception as error:
        fault = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if fault:
        logging.getLogger("gpst").warning("Triton's kernels are not used: %s", fault)
    return not fault
