"""``python -m data_prep COMMAND``: see --help."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors become one line on standard error and an exit code."""
    try:  # a signal may come while the modules are loaded
        from data_prep.cli.arguments import make_parser
        from data_prep.cli.commands import run
        from data_prep.errors import DataPrepError
    except KeyboardInterrupt:
        return _interrupted()
    try:
        return run(make_parser().parse_args(arguments))
    except DataPrepError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _interrupted() -> int:
    print("error: interrupted; run the same command again to go on", file=sys.stderr)
    return 130  # EXIT_INTERRUPTED of data_prep/errors.py, which may not be loaded yet


if __name__ == "__main__":
    sys.exit(main())
