"""`python -m gpst COMMAND ...`: parse, generate and surprisal with an exported model."""

import sys

from gpst.hf.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
