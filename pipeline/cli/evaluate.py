"""`launch/evaluate.sh TASK ...`: the evaluations by name (pipeline/evaluate/registry.py)."""

import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module

from gpst.cli.process import load_torch, loading
from pipeline.arguments import Parser
from pipeline.errors import EXIT_USAGE, report
from pipeline.evaluate.options import add_options, read_options
from pipeline.evaluate.registry import EVALUATIONS
from pipeline.terminal import be_quiet

_EXAMPLE = "launch/evaluate.sh perplexity --model runs/demo/exported --data data/demo"
_EXIT_CODES = "exit codes: 0 done, 2 wrong usage or configuration, 3 damaged data, 130 interrupted"


def usage() -> str:
    """What `--help` prints."""
    lines = [f"  {name:<26}{entry.summary}" for name, entry in EVALUATIONS.items()]
    return "\n".join(
        [
            "usage: launch/evaluate.sh TASK ...",
            "",
            "Evaluates models. TASK --help says what a task takes:",
            *lines,
            "",
            f"example:\n  bash {_EXAMPLE}",
            "",
            _EXIT_CODES,
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Runs an evaluation and returns its exit code."""
    if argv and argv[0] in ("-h", "--help"):
        print(usage())
        return 0
    task = argv[0].replace("-", "_") if argv else None
    if task not in EVALUATIONS:
        problem = f"task {argv[0]!r} does not exist" if argv else "no task is given"
        known = ", ".join(EVALUATIONS)
        print(f"evaluate: {problem}; known are {known} (see --help)", file=sys.stderr)
        return EXIT_USAGE
    return _run(task, argv[1:])


def _run(name: str, argv: Sequence[str]) -> int:
    entry = EVALUATIONS[name]
    with loading(name):
        module = import_module(entry.module)
    parser = Parser(
        prog=f"launch/evaluate.sh {name}",
        description=module.SUMMARY,
        epilog=f"example:\n  bash launch/evaluate.sh {name} {entry.example}\n\n{_EXIT_CODES}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, module.Options)
    parser.add_argument("--quiet", action="store_true", help="no progress, only results")
    try:
        arguments = parser.parse_args(argv)
        be_quiet(arguments.quiet)
        options = read_options(module.Options, arguments)
        load_torch(name)
        code = module.run(options)
        sys.stdout.flush()
        return code
    except BaseException as error:
        return report(error, name)
