"""The report as a Markdown page and as an HTML page, from the templates in this folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from pipeline.report.pictures import Picture
from pipeline.report.tables import Table

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=lambda name: name == "report.html.jinja",
    trim_blocks=True,
)
_ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")
_ADDRESS = "https://arxiv.org/abs/"


def _linked_md(text: str) -> str:
    return _ARXIV.sub(rf"[arXiv \1]({_ADDRESS}\1)", text)


def _linked_html(text: str) -> Markup:
    return Markup(_ARXIV.sub(rf'<a href="{_ADDRESS}\1">arXiv \1</a>', str(escape(text))))


_TEMPLATES.filters |= {"linked_md": _linked_md, "linked_html": _linked_html}


def render(
    page: Literal["report.md", "report.html"],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    about: str,
) -> str:
    """The page: tables, learning curves and trees.

    Args:
        page: report.md refers to the pictures' files beside it; report.html has them inside.
        about: what the page was made from.
    """
    headings = dict.fromkeys(picture.heading for picture in pictures)
    sections = {name: [one for one in pictures if one.heading == name] for name in headings}
    template = _TEMPLATES.get_template(f"{page}.jinja")
    text = template.render(tables=tables, about=about, sections=sections)
    return text.rstrip() + "\n"
