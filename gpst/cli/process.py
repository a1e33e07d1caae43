"""How a command's process ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Ends this process: its threads joined, its exit handlers run, its output written.

    Without the interpreter's teardown, which takes half a second after torch; and a library's
    thread (gloo's) that comes late on a full machine and wants the interpreter while that is being
    taken down ends the process with -6.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # the reader has seen enough (| head)
    except (OSError, ValueError) as error:
        print(f"cannot write the output: {error}", file=sys.stderr)
        code = code or 1
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
