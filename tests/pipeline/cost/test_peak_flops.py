"""The denominator of the MFU."""

import pytest
import torch

from pipeline.cost.peak_flops import data_sheet_tflops, device_peak

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "fp32", 156),
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "fp16", 989),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40", "bf16", None),
        ("Tesla T4", "fp16", 65),
        ("Imaginary 9000", "bf16", None),
    ],
)
def test_data_sheets(name, precision, tflops):
    assert data_sheet_tflops(name, precision) == tflops


def test_the_peak_of_the_config_takes_precedence():
    peak = device_peak(CPU, "bf16", set_tflops=2.5)
    assert (peak.flops_per_second, peak.source) == (2.5e12, "monitor.peak_tflops_per_rank")


def test_a_cpu_is_measured():
    peak = device_peak(CPU, "fp32")
    assert peak.source == "a fp32 matrix product, measured"
    # From a slow shared core to a very large machine.
    assert 1e8 < peak.flops_per_second < 1e14
