"""``python -m data_prep COMMAND``: see --help."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from data_prep.errors import EXIT_INTERRUPTED, DataPrepError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors become one line on standard error and an exit code."""
    try:
        # Here, because a signal may come while the modules are loaded.
        from data_prep.cli.arguments import make_parser
        from data_prep.cli.commands import run

        return run(make_parser().parse_args(arguments))
    except DataPrepError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
