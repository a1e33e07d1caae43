"""`python -m pipeline report RUNS...`: the paper's tables, learning curves and trees on a page."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from data_prep.files import write_atomically
from pipeline.arguments import Parser
from pipeline.errors import ConfigError, DataError
from pipeline.errors import report as say

PAPER = "configs/paper.yaml"


def _parser() -> ArgumentParser:
    parser = Parser(
        prog="python -m pipeline report",
        description="Makes report.md and report.html with the paper's tables, filled from "
        "results.json files, learning curves from metrics.jsonl, and trees.",
        epilog="example:\n  python -m pipeline report runs --output report\n\n"
        "exit codes: 0 done, 2 wrong usage, 3 damaged results",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs and evaluations")
    parser.add_argument("--output", default="report", help="folder of the pages (report)")
    parser.add_argument(
        "--paper", metavar="YAML", help=f"numbers to show beside the measured ones ({PAPER})"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    try:
        _run(argv)
    except BaseException as error:
        return say(error, "report")
    return 0


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    from pipeline.report.collect import collect
    from pipeline.report.names import Names
    from pipeline.report.overview import overview
    from pipeline.report.pages import render
    from pipeline.report.pictures import curves, trees
    from pipeline.report.tables import make_tables
    from pipeline.report.tree_scores import tree_details

    quoted = read_paper(options.paper)
    collected = collect(options.runs)
    results, trainings = collected.results, collected.trainings
    tables = [table for table in [overview(results, trainings)] if table.rows]
    tables += make_tables(results, trainings, quoted)
    names = Names(results, trainings)
    tables += [table for table in [tree_details(results, names)] if table.rows]
    pictures = [*curves(trainings, names), *trees(results, trainings, names)]
    about = (
        f"Made from {_count(results, 'result')} and {_count(trainings, 'training run')} in "
        f"{', '.join(options.runs)}. Rows in italics are quoted, not measured."
    )
    output = Path(options.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            write_atomically(output / picture.file, picture.svg.encode())
        for page in ("report.md", "report.html"):
            write_atomically(output / page, render(page, tables, pictures, about).encode())
    except OSError as error:
        raise DataError(f"--output {output}: cannot be written ({error.strerror})") from None
    print(f"{output / 'report.md'}  {output / 'report.html'}")


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def read_paper(path: str | None) -> list[dict[str, Any]]:
    """The quoted rows in blocks: [{table:, label:, source:, columns: [], rows: {name: []}}, ...].

    Raises:
        ConfigError: the file cannot be read or a block is wrong.
    """
    from pipeline.config import yaml_text
    from pipeline.config.run import REPOSITORY

    file = Path(path) if path else REPOSITORY / PAPER
    blocks = yaml_text.read(file, "--paper")
    if not isinstance(blocks, list):
        raise ConfigError(f"--paper {file}: must be a list of blocks")
    types = {"table": str, "label": str, "source": str, "columns": list, "rows": dict}
    for number, block in enumerate(blocks, 1):
        if not isinstance(block, dict) or {k: type(v) for k, v in block.items()} != types:
            raise ConfigError(
                f"--paper {file}: block {number} must have a table, a label, a source, a list of "
                "columns, and rows"
            )
        width = len(block["columns"])
        for name, values in block["rows"].items():
            cells = values if isinstance(values, list) else []
            if len(cells) != width or not {type(v) for v in cells} <= {int, float, NoneType}:
                raise ConfigError(
                    f"--paper {file}: block {number}: row {name!r} must be a list with a number or "
                    f"null for each of the columns ({width})"
                )
    return blocks
