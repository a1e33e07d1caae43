"""`python -m gpst COMMAND ...`: parse, generate and surprisal with an exported model."""

import sys

from gpst.cli.process import end_process

if __name__ == "__main__":
    try:
        from gpst.cli.commands import main

        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # while the modules were loaded
        print("gpst: interrupted", file=sys.stderr)
        code = 130
    end_process(code)
