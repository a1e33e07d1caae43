"""Writes the generated pages of the documentation: `python docs/generate [--tree MODEL]`.

docs/reference/ comes from the code (configuration, metrics, commands), docs/pictures/
from its charts. A test compares what is committed with what this writes; `make docs` writes it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent))

import drawings  # noqa: E402
import reference  # noqa: E402


def pages() -> dict[str, str]:
    """Path below docs/ -> text, of everything that the code alone determines."""
    return {
        "reference/configuration.md": reference.configuration(),
        "reference/metrics.md": reference.metrics(),
        "reference/commands.md": reference.commands(),
        **{f"pictures/{name}.svg": svg for name, svg in drawings.pictures().items()},
    }


def main() -> None:
    """Writes the pages; with --tree also the picture that needs a trained model."""
    parser = argparse.ArgumentParser("python docs/generate", description=__doc__)
    parser.add_argument("--tree", metavar="MODEL", help="also draw docs/pictures/tree.svg with it")
    parser.add_argument("--curves", metavar="RUN", help="also draw the curves of a run")
    options = parser.parse_args()
    written = pages()
    if options.tree:
        written["pictures/tree.svg"] = drawings.induced_tree(options.tree)
    if options.curves:
        written |= {f"pictures/{k}": v for k, v in drawings.curves_of(options.curves).items()}
    for name, text in written.items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
        print(DOCS / name)


if __name__ == "__main__":
    main()
