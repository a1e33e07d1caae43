"""`python -m gpst COMMAND ...`: parse, generate and surprisal with an exported model."""

import sys

from gpst.cli.process import end_process, loading

if __name__ == "__main__":
    with loading("gpst"):
        from gpst.cli.commands import main
    end_process(main(sys.argv[1:]))
