"""Whether trees and suites of `make miniature` can be read, before its hours (miniature.sh)."""

import os
from pathlib import Path

from gpst.cli.process import end_process
from pipeline.errors import DataError, report
from pipeline.evaluate.syntaxgym.suites import read_suites
from pipeline.treebank import read_trees


def main() -> int:
    """Checks the files of TREES and SUITES; returns the exit code."""
    trees, suites = os.environ.get("TREES"), os.environ.get("SUITES")
    try:
        for part in ("train", "valid", "test") if trees else ():
            read_trees(Path(trees or "") / f"{part}.txt")
        if suites:
            read_suites(suites)
    except DataError as error:
        return report(error, "miniature: TREES, SUITES")
    return 0


if __name__ == "__main__":
    end_process(main())
