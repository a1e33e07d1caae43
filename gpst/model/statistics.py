"""Statistics of the induced trees and of their chart."""

from __future__ import annotations

import torch
from torch import Tensor

from gpst.chart.decode import InducedTrees, without_cutting
from gpst.chart.inside import InsideOutput
from gpst.chart.layout import ChartLayout
from gpst.model.losses import LossTerm

STATISTICS = ("height", "entropy", "left_children", "right_children", "agreement")


@torch.no_grad()
def structure_statistics(
    scores: Tensor, layout: ChartLayout, induced: InducedTrees, chart: InsideOutput
) -> dict[str, LossTerm]:
    """Sums that tell how the trees are doing.

    height: expected height of the root; entropy: of the weights over the splits of the trees'
    nodes, nats; left_children, right_children: internal ones among the nodes' children;
    agreement: nodes whose split is the parser's own first choice among those that a tree may take.
    """
    internal = induced.marked[layout.num_tokens :] == 1
    log_weights = torch.log(chart.weights.clamp_min(1e-12))
    cell = layout.parent - layout.num_tokens
    entropy = torch.zeros_like(chart.heights[layout.num_tokens :]).index_add_(
        0, cell, -chart.weights * log_weights
    )
    best = torch.full_like(entropy, -torch.inf, dtype=scores.dtype)
    best.scatter_reduce_(0, cell, without_cutting(layout, scores[layout.cut]), "amax")
    agrees = scores[layout.cut[induced.best_edge]] >= best
    left, right = layout.left[induced.best_edge], layout.right[induced.best_edge]

    def count(what: Tensor) -> LossTerm:
        return LossTerm((what & internal).sum().float(), "splits")

    return {
        "height": LossTerm(chart.heights[layout.roots].sum().float(), "sentences"),
        "entropy": LossTerm(torch.where(internal, entropy, 0.0).sum().float(), "splits"),
        "left_children": count(left >= layout.num_tokens),
        "right_children": count(right >= layout.num_tokens),
        "agreement": count(agrees),
    }


def layout_sizes(layout: ChartLayout) -> dict[str, int]:
    """`ModelOutput.sizes` of a chart."""
    return {
        "cells": layout.num_cells,
        "edges": len(layout.parent),
        "edges_over_tokens": layout.levels[0].last_edge if layout.levels else 0,
        "levels": len(layout.levels),
    }
