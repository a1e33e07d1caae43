"""`python -m pipeline TASK ...`: the trainer's tasks by name, reports, and the doctor."""

import sys
from collections.abc import Sequence

from pipeline.cli import doctor
from pipeline.errors import EXIT_USAGE
from pipeline.finetune import command as finetune
from pipeline.report import command as report
from pipeline.train import pretrain

TASKS = {
    "pretrain": pretrain.main,
    "finetune": finetune.main,
    "report": report.main,
    "doctor": doctor.main,
}
USAGE = """\
usage: python -m pipeline TASK ...

  pretrain  pre-trains a GPST or a GPT-2 baseline (launch/pretrain.sh)
  finetune  fine-tunes and evaluates one (launch/finetune.sh)
  report    tables, curves and trees of runs on a page
  doctor    what of this machine would break a run

TASK --help says what a task takes; launch/ holds the other commands.
"""


def main(argv: Sequence[str]) -> int:
    """Runs a task and returns its exit code."""
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if not argv or argv[0] not in TASKS:
        given = f"task {argv[0]!r} does not exist" if argv else "no task is given"
        print(f"pipeline: {given}; known are {', '.join(TASKS)} (see --help)", file=sys.stderr)
        return EXIT_USAGE
    return TASKS[argv[0]](argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
