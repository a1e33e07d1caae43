"""Learning curves as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpst.render import xml_text

Points = Sequence[tuple[float, float]]

_PLOT_WIDTH, _PLOT_HEIGHT = 490, 262
_LEFT, _TOP, _BOTTOM = 70, 34, 44
_LETTER, _LINE = 6.6, 16  # of the legend, which is beside the plot
_COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf", "#c77d1e", "#4a4a4a", "#0f9d9d", "#b8336a")


def chart(title: str, curves: Mapping[str, Points], log: bool = False) -> str:
    """A line chart over optimizer steps.

    Args:
        curves: name -> (step, value) in order; values are finite.
        log: the values' axis is logarithmic (all must be > 0).
    """
    points = [point for curve in curves.values() for point in curve]
    lows = [min(p[k] for p in points) for k in (0, 1)]
    highs = [max(p[k] for p in points) for k in (0, 1)]

    def scaled(value: float) -> float:
        return math.log10(value) if log else value

    def across(x: float) -> float:
        share = (x - lows[0]) / ((highs[0] - lows[0]) or 1.0)
        return _LEFT + share * _PLOT_WIDTH

    def down(y: float) -> float:
        span = (scaled(highs[1]) - scaled(lows[1])) or 1.0
        share = (scaled(y) - scaled(lows[1])) / span
        return floor - share * _PLOT_HEIGHT

    right, floor = _LEFT + _PLOT_WIDTH, _TOP + _PLOT_HEIGHT
    width = right + 20 + _LETTER * max(map(len, curves))
    height = max(floor + _BOTTOM, _TOP + _LINE * (len(curves) + 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{xml_text(title)}</text>',
        f'<path d="M{_LEFT} {_TOP}V{floor}H{right}" fill="none" stroke="#888"/>',
        f'<text x="{(_LEFT + right) / 2:.0f}" y="{floor + 36}" text-anchor="middle">step</text>',
    ]
    for k in range(5):
        x = lows[0] + (highs[0] - lows[0]) * k / 4
        s = scaled(lows[1]) + (scaled(highs[1]) - scaled(lows[1])) * k / 4
        y = 10**s if log else s
        parts.append(
            f'<text x="{across(x):.1f}" y="{floor + 16}" text-anchor="middle">{x:,.0f}</text>'
            f'<text x="{_LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>'
            f'<path d="M{_LEFT} {down(y):.1f}H{right}" stroke="#eee"/>'
        )
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in curve)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        at = _TOP + 14 + _LINE * number
        parts.append(f'<text x="{right + 10}" y="{at}" fill="{colour}">{xml_text(name)}</text>')
    return "\n".join([*parts, "</svg>"])
