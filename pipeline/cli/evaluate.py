"""`launch/evaluate.sh TASK ...`: the evaluations by name.

Exit codes: those of the tasks (pipeline/evaluate/command.py).
"""

import importlib
import sys
from collections.abc import Sequence

from pipeline.errors import EXIT_USAGE
from pipeline.evaluate.command import EXIT_CODES, run_task

TASKS = {
    "perplexity": "perplexity of a GPST and a GPT-2 on a dataset's held-out contexts",
    "grammar_induction": "F1 of induced trees against a treebank",
    "syntactic_generalization": "accuracy on SyntaxGym's test suites",
}
MODULES = {
    "perplexity": "perplexity",
    "grammar_induction": "grammar_induction.evaluation",
    "syntactic_generalization": "syntaxgym.evaluation",
}
EXAMPLE = "launch/evaluate.sh perplexity --model runs/demo/exported --data data/demo"


def usage() -> str:
    """What `--help` prints."""
    lines = [f"  {name:<26}{summary}" for name, summary in TASKS.items()]
    return "\n".join(
        [
            "usage: launch/evaluate.sh TASK ...",
            "",
            "Evaluates models. TASK --help says what a task takes:",
            *lines,
            "",
            f"example:\n  bash {EXAMPLE}",
            "",
            EXIT_CODES,
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Runs an evaluation and returns its exit code."""
    task = argv[0].replace("-", "_") if argv and argv[0] not in ("-h", "--help") else None
    if argv and task is None:
        print(usage())
        return 0
    if task not in TASKS:
        given = f"task {argv[0]!r} does not exist" if argv else "no task is given"
        print(f"evaluate: {given}; known are {', '.join(TASKS)} (see --help)", file=sys.stderr)
        return EXIT_USAGE
    module = importlib.import_module(f"pipeline.evaluate.{MODULES[task]}")
    return run_task(task, module.SUMMARY, module.add_arguments, module.run, argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
