"""The report as a Markdown page and as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from pipeline.report.tables import Table

TITLE = "GPST: results"
_STYLE = (
    "body{font-family:sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}"
    "td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:right}"
    "td:first-child,th:first-child{text-align:left}.quoted{color:#777;font-style:italic}"
    "figure{margin:1rem 0;overflow-x:auto}"
)


def markdown(tables: Sequence[Table], pictures: Mapping[str, str], about: Sequence[str]) -> str:
    """The page; pictures are files beside it.

    Args:
        pictures: file name -> SVG.
        about: sentences on top: what the page was made from.
    """
    parts = [f"# {TITLE}", "", *about, ""]
    for table in tables:
        parts += [f"## {table.title}", ""]
        parts.append("| model | " + " | ".join(table.columns) + " |")
        parts.append("|---|" + "---:|" * len(table.columns))
        for name, cells in table.rows.items():
            shown = f"*{name}*" if name in table.quoted else name
            values = [str(cells[c]) if c in cells else "" for c in table.columns]
            parts.append(f"| {_cell(shown)} | " + " | ".join(values) + " |")
        parts += ["", table.note, ""]
        parts += [*(f"- {source}" for source in table.sources), ""] if table.sources else []
    for heading, kind in (("Learning curves", "curve-"), ("Trees", "trees-")):
        own = [name for name in pictures if name.startswith(kind)]
        if own:
            parts += [f"## {heading}", ""]
            for name in own:
                parts += [f"{_caption(name)}:", "", f"![{_caption(name)}]({name})", ""]
    return "\n".join(parts)


def html(tables: Sequence[Table], pictures: Mapping[str, str], about: Sequence[str]) -> str:
    """The same as one file with the pictures inside."""
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{TITLE}</h1>",
        *(f"<p>{escape(line)}</p>" for line in about),
    ]
    for table in tables:
        parts.append(f"<h2>{escape(table.title)}</h2><table><tr><th>model</th>")
        parts += [f"<th>{escape(column)}</th>" for column in table.columns]
        parts.append("</tr>")
        for name, cells in table.rows.items():
            kind = ' class="quoted"' if name in table.quoted else ""
            values = "".join(
                f"<td>{escape(str(cells[c])) if c in cells else ''}</td>" for c in table.columns
            )
            parts.append(f"<tr{kind}><td>{escape(name)}</td>{values}</tr>")
        parts.append(f"</table><p>{escape(table.note)}</p>")
        parts += [f"<p>{escape(source)}</p>" for source in table.sources]
    for heading, kind in (("Learning curves", "curve-"), ("Trees", "trees-")):
        own = [name for name in pictures if name.startswith(kind)]
        if own:
            parts.append(f"<h2>{heading}</h2>")
            for name in own:
                caption = escape(_caption(name))
                parts.append(f"<figure>{pictures[name]}<figcaption>{caption}</figcaption></figure>")
    return "\n".join([*parts, "</body></html>\n"])


def _caption(name: str) -> str:
    return name.removeprefix("curve-").removeprefix("trees-").removesuffix(".svg")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
