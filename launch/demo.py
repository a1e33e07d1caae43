"""`python -m launch.demo --model DIR`: a page on which a model parses, measures and writes."""

import sys

from gpst.cli.process import end_process
from pipeline.__main__ import main

if __name__ == "__main__":
    end_process(main(["demo", *sys.argv[1:]]))
