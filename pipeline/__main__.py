"""`python -m pipeline COMMAND ...`: the commands of pipeline/cli/commands.py by name."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gpst.cli.process import end_process, loading


def usage(commands: Mapping[str, Any]) -> str:
    """What `--help` prints."""
    lines = [f"  {command.name:<11}{command.summary}\n" for command in commands.values()]
    head = "usage: python -m pipeline TASK ...\n\n"
    return head + "".join(lines) + "\nTASK --help says what a task takes; see also launch/.\n"


def main(argv: Sequence[str]) -> int:
    """Runs a command and returns its exit code."""
    with loading("pipeline"):
        from pipeline.cli.commands import COMMANDS
        from pipeline.errors import EXIT_USAGE
    if argv and argv[0] in ("-h", "--help"):
        print(usage(COMMANDS), end="")
        return 0
    if not argv or argv[0] not in COMMANDS:
        problem = f"task {argv[0]!r} does not exist" if argv else "no task is given"
        print(f"pipeline: {problem}; known are {', '.join(COMMANDS)} (see --help)", file=sys.stderr)
        return EXIT_USAGE
    return COMMANDS[argv[0]].run(argv[1:])


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
