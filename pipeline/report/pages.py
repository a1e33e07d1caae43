"""The report as a Markdown page and as an HTML page, from the templates in this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader

from pipeline.report.tables import Table

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=lambda name: name == "report.html.jinja",
    trim_blocks=True,
)
_HEADINGS = {"Learning curves": "curve-", "Trees": "trees-"}


def render(
    page: Literal["report.md", "report.html"],
    tables: Sequence[Table],
    pictures: Mapping[str, str],
    about: str,
) -> str:
    """The page: tables, learning curves and trees.

    Args:
        page: report.md refers to the pictures' files beside it; report.html has them inside.
        pictures: file name -> SVG.
        about: what the page was made from.
    """
    sections = {
        heading: {
            file.removeprefix(prefix).removesuffix(".svg"): file
            for file in pictures
            if file.startswith(prefix)
        }
        for heading, prefix in _HEADINGS.items()
    }
    template = _TEMPLATES.get_template(f"{page}.jinja")
    text = template.render(tables=tables, pictures=pictures, about=about, sections=sections)
    return text.rstrip() + "\n"
