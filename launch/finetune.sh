#!/usr/bin/env bash
""":"
# Both bash and Python; see ranks.bash.
. "$(dirname "${BASH_SOURCE[0]}")/ranks.bash"
: << "# end of Python"
":"""

import os
import signal
import sys

# Until main answers signals with a line.
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))  # a time limit that is near: nothing was done
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from gpst.cli.process import end_process  # noqa: E402
from gpst.cli.threads import wait_briefly  # noqa: E402

wait_briefly()
from pipeline.finetune.command import main  # noqa: E402

if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
# end of Python
