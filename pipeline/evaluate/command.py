"""The command line of an evaluation: `launch/evaluate.sh TASK ...`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence

from pipeline.arguments import Parser
from pipeline.errors import report
from pipeline.terminal import be_quiet

EXAMPLES = {
    "perplexity": "--model runs/demo/exported --gpt2 runs/demo-gpt2/exported --data data/demo",
    "grammar_induction": "--model runs/demo/exported --trees data/ptb/test.txt",
    "syntactic_generalization": "--model runs/demo/exported --suites data/syntaxgym",
}
EXIT_CODES = "exit codes: 0 done, 2 wrong usage or configuration, 3 damaged data, 130 interrupted"


def run_task(
    name: str,
    summary: str,
    add_arguments: Callable[[ArgumentParser], None],
    run: Callable[[Namespace], int],
    argv: Sequence[str] | None = None,
) -> int:
    """Reads the command line, runs the task and returns the exit code.

    0 done; 2 wrong usage or configuration; 3 damaged data or model; 130 interrupted. An error that
    a user can act on is one line on standard error.
    """
    parser = Parser(
        prog=f"launch/evaluate.sh {name}",
        description=summary,
        epilog=f"example:\n  bash launch/evaluate.sh {name} {EXAMPLES[name]}\n\n{EXIT_CODES}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress, only results")
    try:
        options = parser.parse_args(sys.argv[1:] if argv is None else argv)
        be_quiet(options.quiet)
        code = run(options)
        sys.stdout.flush()
        return code
    except BaseException as error:
        return report(error, name)
