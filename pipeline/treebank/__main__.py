"""`python -m pipeline.treebank TREES [--to FORM]`: converts a treebank to a tree a line."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

from gpst.cli.process import end_process
from pipeline.errors import report
from pipeline.treebank.read import read_trees
from pipeline.treebank.tree import GoldTree

_FORMS = {
    "labelled": GoldTree.one_line,
    "unlabelled": GoldTree.unlabelled,
    "words": lambda tree: " ".join(tree.words),
}


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = ArgumentParser(
        prog="python -m pipeline.treebank",
        description=__doc__,
        epilog="example:\n  python -m pipeline.treebank wsj/23 --lower > data/ptb/test.txt\n\n"
        "exit codes: 0 done, 2 wrong usage, 3 damaged trees or a full disk",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("trees", help="a file of trees, or a folder with .mrg or .ptb files")
    parser.add_argument("--to", choices=_FORMS, default="labelled", help="what a line holds")
    parser.add_argument("--no-punctuation", action="store_true", help="leave punctuation out")
    parser.add_argument("--lower", action="store_true", help="lower-case the words")
    arguments = parser.parse_args(argv)
    try:
        for tree in read_trees(arguments.trees):
            if arguments.no_punctuation:
                tree = tree.without_punctuation()
            if arguments.lower:
                tree = tree.lower()
            if tree.words:
                print(_FORMS[arguments.to](tree))
        sys.stdout.flush()
    except BaseException as error:
        return report(error, "treebank")
    return 0


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
