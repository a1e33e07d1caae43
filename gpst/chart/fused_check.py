"""Do the kernels of whole levels agree with the passes level by level on this device?"""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from gpst.chart.layout import build_layout
from gpst.config import CompositionConfig
from gpst.kernels.choice import requested
from gpst.layers.composition import Composition, Decomposition

_TOLERANCE = 1e-2
"""Products may be rounded to TF32."""
_AGREED: dict[torch.device, bool] = {}


def levels_agree(device: torch.device) -> bool:
    """Asked once a device, on a small chart; GPST_KERNELS=triton takes it for granted."""
    if requested() == "triton":
        return True
    if device not in _AGREED:
        _AGREED[device] = True  # the check itself goes by the kernels
        fault = _said(device)
        _AGREED[device] = not fault
        if fault:
            logging.getLogger("gpst").warning(
                "Triton's kernels of whole levels are not used: %s", fault
            )
    return _AGREED[device]


def _said(device: torch.device) -> str:
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            return disagreement(device)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def disagreement(device: torch.device) -> str:
    """What disagrees, in words; empty when nothing does."""
    from gpst.chart.inside import inside
    from gpst.chart.outside import outside

    torch.manual_seed(0)
    config = CompositionConfig(
        dim=16, num_heads=2, ffn_dim=16, num_layers=1, score_dim=8, dropout=0
    )
    ends = np.array([1, 6, 8])
    with torch.autocast(device.type, enabled=False):
        models = Composition(config).to(device), Decomposition(config).to(device)
        layout = build_layout(np.array([0, 3, 1, 2, 4, 0, 0, 0]), ends).to(device)
        leaves = torch.randn(8, 16).to(device).requires_grad_()
        weights = [parameter for model in models for parameter in model.parameters()]

        def run(whole_levels: bool) -> list[Tensor]:
            chart = inside(layout, models[0], leaves, whole_levels=whole_levels)
            rebuilt = outside(layout, models[1], chart.inside_ae, whole_levels=whole_levels)
            loss = rebuilt.square().sum() + chart.heights.sum() + (chart.inside_ar**3).sum()
            return [chart.inside_ae, rebuilt, *torch.autograd.grad(loss, [leaves, *weights])]

        names = ["inside", "outside", "gradient of the tokens"]
        for number, (ours, plain) in enumerate(zip(run(True), run(False), strict=True)):
            error = (ours - plain).abs().max().item() / max(1.0, plain.abs().max().item())
            if not error < _TOLERANCE:
                name = names[number] if number < len(names) else f"gradient {number - len(names)}"
                return f"{name} differs by {error:.2g}"
    return ""
