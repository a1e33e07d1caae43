"""`python -m launch.demo --model DIR`: a page on which a model parses, measures and writes."""

import sys

from pipeline.cli.model_commands import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
