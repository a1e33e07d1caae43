"""Trees as text and pictures: ascii, bracket, ptb, json, svg, png."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as escape_xml

from gpst.api import ParsedSentence
from gpst.brackets import escape
from gpst.tree import Tree

TEXT_FORMATS = ("ascii", "bracket", "ptb", "json")

_FONT, _GAP, _MARGIN = 16, 14, 20
_HEIGHT, _FLATTEST, _STEEPEST = 260, 0.3, 0.85
"""Aim for the height of a tree, and slopes of its edges."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_text(parsed: ParsedSentence, style: str, number: int | None = None) -> str:
    """One sentence's tree in one of TEXT_FORMATS.

    Args:
        number: of the sentence, for json.
    """
    if style == "ascii":
        return parsed.picture()
    if style == "bracket":
        return str(parsed)
    if style == "ptb":
        return _labelled(parsed.tree, [f"(W {escape(word)})" for word in parsed.words])
    if style == "json":
        values = {} if number is None else {"sentence": number}
        values |= {"words": parsed.words, "spans": parsed.tree.spans, "log_p": parsed.log_p}
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
    """Lays a tree out: words in a row, each constituent over the middle of its first and last word.

    Its height goes by the distance of the two, so that edges have one slope and never cross.
    """
    x = float(_MARGIN)
    middles: list[float] = []
    for word in parsed.words:
        width = 0.6 * _FONT * max(1, sum(map(_places, word)))
        middles.append(x + width / 2)
        x += width + _GAP
    width = middles[-1] - middles[0]
    slope = min(_STEEPEST, max(_FLATTEST, 2 * _HEIGHT / max(width, 1.0)))
    bottom = _MARGIN + slope * width / 2

    def place(span: tuple[int, int]) -> tuple[float, float]:
        first, last = middles[span[0]], middles[span[1]]
        return (first + last) / 2, bottom - slope * (last - first) / 2

    lines: list[tuple[float, float, float, float]] = []
    stack: list[tuple[int, int]] = []
    for span in parsed.tree.spans:
        if span[0] < span[1]:
            right, left = stack.pop(), stack.pop()
            lines += [(*place(span), *place(child)) for child in (left, right)]
        stack.append(span)
    baseline = bottom + 1.2 * _FONT
    words = [(m, baseline, word) for m, word in zip(middles, parsed.words, strict=True)]
    return Drawing(x - _GAP + _MARGIN, baseline + _MARGIN, lines, words)


def _places(sign: str) -> int:
    """Widths of a letter that a character takes: wide ones two, marks on others none."""
    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def xml_text(text: str) -> str:
    """Text in XML; characters that XML does not have become U+FFFD."""
    return escape_xml(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text))


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
                f'<text x="{x:.1f}" y="{top + y:.1f}" text-anchor="middle">{xml_text(word)}</text>'
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
