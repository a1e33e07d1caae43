"""Drawings of the algorithm, from the charts and models that the code itself makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from gpst.chart.layout import ChartLayout, build_layout

SCORES = (0.1, 0.7, 0.9, 0.5, 0.2)
WORDS = ("the", "old", "man", "saw", "a", "dog")
"""The worked example of docs/how_it_works.md: six tokens and a score for each boundary."""
SENTENCE = "We must build a new and better world for our children."
_X, _Y, _LEFT, _BASE = 110, 62, 70, 20
_COLOURS = ("#e8f0f8", "#cfe3c4", "#fbe3b5", "#f4c9c1", "#dccdf0", "#c4e4e4")


def example_plan(schedule: str) -> ChartLayout:
    """The plan of the worked example."""
    import torch

    scores = torch.tensor([*SCORES, 0.0])
    return build_layout(scores.numpy(), np.array([len(WORDS)]), 2, schedule)


def pictures() -> dict[str, str]:
    """Name -> SVG."""
    return {
        "chart_score": chart(example_plan("score"), "score: the default schedule"),
        "chart_height": chart(example_plan("height"), "height: the paper's appendix"),
        "levels": levels(example_plan("score")),
        "routes": routes(),
    }


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="13">'
    )
    marker = (
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>'
    )
    back = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, marker, back, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _box(x: float, y: float, width: float, lines: Sequence[str], fill: str) -> list[str]:
    height = 16 * len(lines) + 10
    rows = [_text(x, y - height / 2 + 17 + 16 * k, line) for k, line in enumerate(lines)]
    return [
        f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width:.0f}" '
        f'height="{height}" rx="5" fill="{fill}" stroke="#777"/>',
        *rows,
    ]


def _levels_of(layout: ChartLayout) -> list[int]:
    level = [0] * layout.num_tokens
    for number, step in enumerate(layout.levels, 1):
        level += [number] * (step.last_cell - step.first_cell)
    return level


def _splits(layout: ChartLayout, cell: int) -> list[int]:
    return sorted(layout.cut[layout.parent == cell].tolist())


def chart(layout: ChartLayout, title: str) -> str:
    """Cells by first token and length, with their splits; colour is the level."""
    level = _levels_of(layout)
    n = layout.num_tokens
    top = _BASE + 30
    parts = [_text(_LEFT - 30, _BASE, title, "start", ' font-size="15"')]
    for cell, (i, j) in enumerate(layout.spans.tolist()):
        x = _LEFT + (i + j) / 2 * _X
        y = top + (n - 1 - (j - i)) * _Y + 20
        lines = [WORDS[i]] if i == j else [f"({i}, {j})", f"splits {_splits(layout, cell)}"]
        parts += _box(x, y, 96, lines, _COLOURS[level[cell] % len(_COLOURS)])
    bottom = top + n * _Y
    for k, score in enumerate(SCORES):
        parts.append(_text(_LEFT + (k + 0.5) * _X, bottom, f"v{k} = {score}"))
    return _svg(2 * _LEFT + (n - 1) * _X, bottom + 20, parts)


def levels(layout: ChartLayout) -> str:
    """Cells level by level with their edges: each row is one batched computation."""
    rows: dict[int, list[int]] = {}
    for cell, number in enumerate(_levels_of(layout)):
        rows.setdefault(number, []).append(cell)
    width = max(map(len, rows.values())) * _X + 170
    place: dict[int, tuple[float, float]] = {}
    for number, cells in rows.items():
        for k, cell in enumerate(cells):
            x = 130 + (k + 0.5) * (width - 150) / len(cells)
            place[cell] = x, 30 + (len(rows) - 1 - number) * 92
    parts = []
    edges = zip(layout.left.tolist(), layout.right.tolist(), layout.parent.tolist(), strict=True)
    for left, right, parent in edges:
        for child, colour in ((left, "#1b6ca8"), (right, "#d1495b")):
            (x, y), (a, b) = place[child], place[parent]
            parts.append(
                f'<line x1="{x:.0f}" y1="{y - 13:.0f}" x2="{a:.0f}" y2="{b + 13:.0f}" '
                f'stroke="{colour}" stroke-opacity="0.6"/>'
            )
    for cell, (x, y) in place.items():
        i, j = layout.spans[cell].tolist()
        number = next(n for n, cells in rows.items() if cell in cells)
        text = WORDS[i] if i == j else f"({i}, {j})"
        parts += _box(x, y, 62, [text], _COLOURS[number % len(_COLOURS)])
    for number, cells in rows.items():
        label = "tokens" if number == 0 else f"level {number}: {len(cells)} cells"
        parts.append(_text(8, place[cells[0]][1] + 4, label, "start"))
    return _svg(width, 30 + len(rows) * 92, parts)


_NODES: Mapping[str, tuple[int, int, Sequence[str], str]] = {
    "tokens": (80, 150, ["token", "embeddings"], "#e8f0f8"),
    "f": (230, 150, ["f_alpha", "m = f(left, right)"], "#cfe3c4"),
    "s": (230, 250, ["phi_alpha", "a = softmax(s / T)"], "#cfe3c4"),
    "ae": (420, 210, ["i_ae = sum a m", "a is live"], "#fbe3b5"),
    "ar": (420, 90, ["i_ar = sum a m", "a is detached"], "#f4c9c1"),
    "outside": (600, 210, ["outside pass", "o of each token"], "#dccdf0"),
    "generator": (600, 90, ["type layers,", "token layers"], "#dccdf0"),
    "lae": (750, 210, ["L_ae"], "#ffffff"),
    "lar": (750, 90, ["L_ar"], "#ffffff"),
    "parser": (230, 410, ["parser: scores v", "(order only)"], "#c4e4e4"),
    "lp": (750, 410, ["L_p"], "#ffffff"),
    "tree": (420, 330, ["induced tree", "(integers)"], "#c4e4e4"),
}
_ARROWS = (
    ("tokens", "f", ""), ("f", "ae", ""), ("f", "ar", ""), ("s", "ae", ""), ("tokens", "s", ""),
    ("s", "ar", "cut"), ("ae", "outside", ""), ("ar", "generator", ""), ("outside", "lae", ""),
    ("generator", "lar", ""), ("s", "tree", "cut"), ("parser", "tree", "cut"),
    ("tree", "lp", "cut"), ("parser", "lp", ""),
)  # fmt: skip


def routes() -> str:
    """The two gradient routes: dashed arrows carry values forward and no gradient back."""
    parts = []
    for start, end, kind in _ARROWS:
        (x, y, *_), (a, b, *_) = _NODES[start], _NODES[end]
        length = ((a - x) ** 2 + (b - y) ** 2) ** 0.5
        dx, dy = (a - x) / length, (b - y) / length
        dash = ' stroke-dasharray="5 4"' if kind else ""
        half = 64 if len(_NODES[end][2]) > 1 else 32
        reach = min(half / (abs(dx) or 1e-9), 24 / (abs(dy) or 1e-9))
        parts.append(
            f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{a - dx * reach:.0f}" '
            f'y2="{b - dy * reach:.0f}" stroke="#555"{dash} marker-end="url(#a)"/>'
        )
    for x, y, lines, fill in _NODES.values():
        parts += _box(x, y, 124 if len(lines) > 1 else 60, lines, fill)
    parts.append(_text(20, 460, "solid: gradients come back; dashed: values only", "start"))
    return _svg(800, 475, parts)


def induced_tree(folder: str) -> str:
    """The tree that a model induces for SENTENCE, and the surprisal of each word in bits."""
    from gpst.api import GPST
    from gpst.render import draw

    model: Any = GPST.from_pretrained(folder, "cpu")
    drawing = draw(model.parse(SENTENCE))
    words = model.surprisal([SENTENCE])
    lines = [
        f'<line x1="{a:.0f}" y1="{b:.0f}" x2="{c:.0f}" y2="{d:.0f}" stroke="#555"/>'
        for a, b, c, d in drawing.lines
    ]
    bits = iter(words)
    for x, y, word in drawing.words:
        own = next(bits)
        height = 4 * own.bits
        lines += [
            _text(x, y, word, extra=' font-family="monospace" font-size="16"'),
            f'<rect x="{x - 9:.0f}" y="{y + 12:.0f}" width="18" height="{height:.0f}" '
            'fill="#1b6ca8" fill-opacity="0.7"/>',
            _text(x, y + 28 + height, f"{own.bits:.1f}", extra=' font-size="12"'),
        ]
    below = drawing.height + 4 * max(word.bits for word in words) + 40
    lines.append(_text(20, below - 6, "bars: surprisal of each word, bits", "start"))
    return _svg(drawing.width, below, lines)


def curves_of(folder: str) -> dict[str, str]:
    """File name -> SVG of the curves of a run, as `python -m pipeline report` draws them."""
    from pipeline.report.collect import collect
    from pipeline.report.names import Names
    from pipeline.report.pictures import curves

    trainings = collect([folder]).trainings
    return {picture.file: picture.svg for picture in curves(trainings, Names((), trainings))}
