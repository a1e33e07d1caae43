"""The peak of a device: the denominator of the model FLOPs utilisation (MFU)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["fp32", "bf16", "fp16"]

_DATA_SHEETS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H200", {"bf16": 989, "fp16": 989, "fp32": 494}),
    ("H100 PCIe", {"bf16": 756, "fp16": 756, "fp32": 378}),
    ("H100", {"bf16": 989, "fp16": 989, "fp32": 494}),
    ("A100", {"bf16": 312, "fp16": 312, "fp32": 156}),
    ("V100", {"fp16": 125, "fp32": 15.7}),
    ("L40S", {"bf16": 362, "fp16": 362, "fp32": 183}),
    ("L4", {"bf16": 121, "fp16": 121, "fp32": 60}),
    ("T4", {"fp16": 65, "fp32": 8.1}),
)
"""TFLOP/s of dense matrix products by a part of the GPU's name; fp32 by TF32 where there is one, as
training does (pipeline/engine/gpu.py). The first that matches counts."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_MEASURED_S = 0.2


@dataclass(frozen=True)
class DevicePeak:
    """The arithmetic per second of one rank that counts as 100%."""

    flops_per_second: float
    source: str
    """Where the number is from, for people."""


def device_peak(
    device: torch.device, precision: Precision, set_tflops: float | None = None
) -> DevicePeak:
    """The peak of a rank's device.

    From a GPU's data sheet where it is known; else the speed of a large matrix product on the
    rank's threads, measured for a fifth of a second.

    Args:
        set_tflops: `monitor.peak_tflops_per_rank`, which takes precedence.
    """
    if set_tflops is not None:
        return DevicePeak(set_tflops * 1e12, "monitor.peak_tflops_per_rank")
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        tflops = data_sheet_tflops(name, precision)
        if tflops is not None:
            return DevicePeak(tflops * 1e12, f"data sheet of {name}, {precision}")
    return DevicePeak(
        _measure(device, _DTYPES[precision]), f"a {precision} matrix product, measured"
    )


def data_sheet_tflops(name: str, precision: str) -> float | None:
    """Of a GPU by its name, e.g. "NVIDIA A100-SXM4-80GB"; None when it is not known."""
    for part, tflops in _DATA_SHEETS:
        # "L4" is no "L40", and "T4" no "T400".
        at = name.find(part)
        if at >= 0 and not name[at + len(part) : at + len(part) + 1].isdigit():
            return tflops.get(precision)
    return None


def _measure(device: torch.device, dtype: torch.dtype) -> float:
    size = 4096 if device.type == "cuda" else 768
    a = torch.ones(size, size, dtype=dtype, device=device)
    b, out = a.clone(), torch.empty_like(a)
    best, began = float("inf"), time.perf_counter()
    with torch.no_grad():
        while best == float("inf") or time.perf_counter() - began < _MEASURED_S:
            started = time.perf_counter()
            torch.mm(a, b, out=out)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best
