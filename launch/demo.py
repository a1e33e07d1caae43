"""`python -m launch.demo --model DIR`: a page on which a model parses, measures and writes."""

import sys

from gpst.web.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
