"""Trees as text and pictures: ascii, bracket, ptb, json, svg, png."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpst.api import ParsedSentence
from gpst.tree import Tree

TEXT_FORMATS = ("ascii", "bracket", "ptb", "json")

_FONT, _ROW, _GAP, _MARGIN = 16, 30, 14, 20
_PTB = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}


def as_text(parsed: ParsedSentence, style: str) -> str:
    """One sentence's tree in one of TEXT_FORMATS."""
    if style == "ascii":
        return parsed.picture()
    if style == "bracket":
        return str(parsed)
    if style == "ptb":
        words = [f"(W {''.join(_PTB.get(c, c) for c in word)})" for word in parsed.words]
        return _labelled(parsed.tree, words)
    if style == "json":
        values = {"words": parsed.words, "spans": parsed.tree.spans, "log_p": parsed.log_p}
        return json.dumps({**values, "brackets": str(parsed)}, ensure_ascii=False)
    raise ValueError(f"format: {style!r} is not allowed; it must be one of {TEXT_FORMATS}")


def _labelled(tree: Tree, words: Sequence[str]) -> str:
    """Penn Treebank style, every constituent an X: (X (W the) (X (W old) (W man)))."""
    stack: list[str] = []
    for i, j in tree.spans:
        if i == j:
            stack.append(words[i])
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(f"(X {left} {right})")
    return stack[-1]


@dataclass(frozen=True)
class Drawing:
    """Lines and words of one tree, in pixels from the top left corner."""

    width: float
    height: float
    lines: list[tuple[float, float, float, float]]
    """x, y of the upper end, x, y of the lower one."""
    words: list[tuple[float, float, str]]
    """Middle and baseline of each word."""


def draw(parsed: ParsedSentence) -> Drawing:
    """Lays a tree out: words in a row, each constituent above the middle of its children."""
    tree = parsed.tree
    x = float(_MARGIN)
    middles: list[float] = []
    for word in parsed.words:
        # Wide characters (CJK and beyond) take about two places.
        width = 0.6 * _FONT * sum(2 if ord(c) > 0x1100 else 1 for c in word)
        middles.append(x + width / 2)
        x += width + _GAP
    bottom = _MARGIN + _ROW * tree.height
    lines: list[tuple[float, float, float, float]] = []
    stack: list[tuple[float, float, int]] = []
    for i, j in tree.spans:
        if i == j:
            stack.append((middles[i], bottom, 0))
            continue
        right, left = stack.pop(), stack.pop()
        height = 1 + max(left[2], right[2])
        node = (left[0] + right[0]) / 2, bottom - _ROW * height, height
        lines += [(node[0], node[1], child[0], child[1]) for child in (left, right)]
        stack.append(node)
    baseline = bottom + 1.2 * _FONT
    words = [(m, baseline, word) for m, word in zip(middles, parsed.words, strict=True)]
    return Drawing(x - _GAP + _MARGIN, baseline + _MARGIN, lines, words)


def as_svg(sentences: Sequence[ParsedSentence]) -> str:
    """One picture with the trees below each other."""
    drawings = [draw(parsed) for parsed in sentences]
    width = max(d.width for d in drawings)
    height = sum(d.height for d in drawings)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="{_FONT}">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    top = 0.0
    for drawing in drawings:
        for a, b, c, d in drawing.lines:
            parts.append(
                f'<line x1="{a:.1f}" y1="{top + b:.1f}" x2="{c:.1f}" y2="{top + d:.1f}" '
                'stroke="#555"/>'
            )
        for x, y, word in drawing.words:
            parts.append(
                f'<text x="{x:.1f}" y="{top + y:.1f}" text-anchor="middle">{escape(word)}</text>'
            )
        top += drawing.height
    return "\n".join([*parts, "</svg>"])


def as_png(sentences: Sequence[ParsedSentence]) -> bytes:
    """The same as `as_svg`, in pixels."""
    from PIL import Image, ImageDraw, ImageFont

    drawings = [draw(parsed) for parsed in sentences]
    size = (int(max(d.width for d in drawings)) + 1, int(sum(d.height for d in drawings)) + 1)
    image = Image.new("RGB", size, "white")
    canvas, font = ImageDraw.Draw(image), ImageFont.load_default(_FONT)
    top = 0.0
    for drawing in drawings:
        for a, b, c, d in drawing.lines:
            canvas.line((a, top + b, c, top + d), fill="#555555")
        for x, y, word in drawing.words:
            canvas.text((x, top + y), word, fill="black", font=font, anchor="ms")
        top += drawing.height
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
