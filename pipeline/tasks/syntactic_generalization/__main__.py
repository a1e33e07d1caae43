"""`launch/evaluate.sh syntactic_generalization ...`."""

import sys

from pipeline.tasks.command import run_task
from pipeline.tasks.syntactic_generalization import SUMMARY, add_arguments, run

if __name__ == "__main__":
    sys.exit(run_task("syntactic_generalization", SUMMARY, add_arguments, run))
