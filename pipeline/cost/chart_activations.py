"""The memory of the passes over the chart (gpst/chart), from its layout; see activations.py."""

from __future__ import annotations

from gpst.chart.layout import ChartLayout
from gpst.chart.pair_pass import pairs_a_chunk
from gpst.config import CompositionConfig

EXACT, INDEX = 4, 8
"""Bytes of a number that is fp32 in any precision, and of an index."""
_MAPS_ALPHA, _MAPS_BETA, _SIBLINGS = 2, 1, 2
"""Score maps of a pair in the inside and in the outside pass, and of a cell."""


def chart_bytes(
    chart: CompositionConfig, layout: ChartLayout, number: int, recompute: bool, device_type: str
) -> tuple[float, float]:
    """(saved, recomputed) of the inside and outside passes (gpst/chart)."""
    edges, cells, dim = len(layout.parent), layout.num_cells, chart.dim
    messages = len(layout.message_child)
    fused = device_type != "cpu"
    inside = _pair(chart, chart.num_layers, _MAPS_ALPHA, number, fused)
    outside = _pair(chart, chart.num_decomposition_layers, _MAPS_BETA, number, fused)
    siblings = _SIBLINGS * 2 * number * dim
    # Both tables of vectors, those of the pairs, the maps' outputs for siblings.
    saved = number * (2 * cells * dim + (edges + messages) * dim)
    saved += _SIBLINGS * number * cells * chart.score_dim
    saved += EXACT * (2 * edges + messages + 3 * cells) + INDEX * messages
    saved += _pair_weights(chart, chart.num_layers, _MAPS_ALPHA, number)
    saved += _pair_weights(chart, chart.num_decomposition_layers, _MAPS_BETA + _SIBLINGS, number)
    levels = [level.last_edge - level.first_edge for level in layout.levels]
    largest = max(levels, default=0)
    if fused:
        kept, made = _whole_levels(
            chart, layout, largest, number, (edges * inside, messages * outside)
        )
        saved += cells * siblings
        return (saved, made) if recompute else (saved + kept, 0)
    if not recompute:
        return saved + edges * inside + messages * outside + cells * siblings, 0
    limit = pairs_a_chunk(device_type, messages)
    outer = [level.messages.stop - level.messages.start for level in layout.outside_levels]
    pieces = (
        min(largest, limit) * inside,
        min(max(outer, default=0), limit) * outside,
        min(cells, limit) * siblings / _SIBLINGS,
    )
    return saved, max(pieces)


def _whole_levels(
    chart: CompositionConfig,
    layout: ChartLayout,
    largest: int,
    number: int,
    passes: tuple[float, float],
) -> tuple[float, float]:
    """(kept, at most at once on the way back) of both passes by the kernels of whole levels.

    Args:
        largest: pairs of a level of the inside pass. passes: bytes that each pass keeps of pairs.
    """
    dim, cells = chart.dim, layout.num_cells

    def way_back(num_layers: int, routes: int) -> float:
        """Bytes of a pair: what attention and GELU give, the gradients of both branches of a layer,
        and those of a pair's rows by each route."""
        return 2 * number * (num_layers * (3 * dim + chart.ffn_dim) + routes * dim)

    # Both routes of gradients of the largest level have rooms beside what is kept.
    room = largest * 2 * number
    inside = passes[0] + room * (3 * dim + chart.ffn_dim)
    # Gradients of the vectors: in fp32 by each route, and as they come from above.
    back = cells * dim * (2 * EXACT + 2 * number) + room * 3 * dim
    back += len(layout.parent) * way_back(chart.num_layers, 2)
    outside = len(layout.message_child) * way_back(chart.num_decomposition_layers, 1)
    return inside + passes[1], max(inside + back, passes[1] + outside)


def _pair(chart: CompositionConfig, num_layers: int, maps: int, number: int, fused: bool) -> float:
    """Bytes of one edge of the composition model, or one message of the decomposition model.

    A layer saves for each of the two rows: queries, keys and values, the attention's output, the
    norms' outputs after the attention and after the feed-forward layer; GELU's value and
    derivative, both after dropout; a weight for each head; masks of a head's two weights and of two
    residuals, which have the type of numbers; two standard deviations. The kernels of whole levels
    (`fused`) make the attention's and GELU's output and the masks again.
    """
    dim, heads = chart.dim, chart.num_heads
    again = 0
    if not fused:
        again = dim + chart.ffn_dim + (2 * (dim + heads) if chart.dropout else 0)
    row = number * (5 * dim + chart.ffn_dim + heads + again) + 2 * EXACT
    # The rows themselves, inputs and outputs of the score maps, the result and its deviation.
    ends = number * (2 * dim + maps * (2 * dim + chart.score_dim) + dim) + EXACT
    return num_layers * 2 * row + ends


def _pair_weights(chart: CompositionConfig, num_layers: int, maps: int, number: int) -> float:
    """The sums of a pair model's gradients, in fp32, and its weights for one product."""
    dim, ffn = chart.dim, chart.ffn_dim
    sums = num_layers * (4 * dim * dim + 2 * dim * ffn) + maps * dim * (dim + chart.score_dim)
    return EXACT * sums + number * num_layers * 3 * dim * dim
