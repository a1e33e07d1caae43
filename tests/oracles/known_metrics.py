"""Which metrics the registry knows."""

from __future__ import annotations

from pipeline.monitor.metrics import METRICS, Metric


def find_metric(name: str) -> Metric | None:
    """The entry of a name, e.g. that of `loss/*` for loss/token."""
    return METRICS.get(name) or METRICS.get(f"{name.rpartition('/')[0]}/*")
