"""`launch/evaluate.sh grammar_induction ...`."""

import sys

from pipeline.tasks.command import run_task
from pipeline.tasks.grammar_induction import SUMMARY, add_arguments, run

if __name__ == "__main__":
    sys.exit(run_task("grammar_induction", SUMMARY, add_arguments, run))
