"""`python -m pipeline TASK ...`: the trainer's tasks by name, reports, and the doctor."""

import sys
from collections.abc import Sequence

from pipeline import doctor, report
from pipeline.errors import EXIT_USAGE
from pipeline.tasks import finetune, pretrain

TASKS = {
    "pretrain": pretrain.main,
    "finetune": finetune.main,
    "report": report.main,
    "doctor": doctor.main,
}


def main(argv: Sequence[str]) -> int:
    """Runs a task and returns its exit code."""
    if not argv or argv[0] not in TASKS:
        given = argv[0] if argv else "nothing"
        print(f"pipeline: task {given!r}: known are {', '.join(TASKS)}", file=sys.stderr)
        return EXIT_USAGE
    return TASKS[argv[0]](argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
