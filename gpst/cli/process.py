"""How a command's process begins and ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from gpst.cli.arguments import EXIT_INTERRUPTED
from gpst.cli.threads import wait_briefly

CLOSED_OUTPUT = "standard output is closed; send it somewhere (> /dev/null)"


@contextmanager
def loading(program: str) -> Iterator[None]:
    """While modules and models load, Ctrl-C ends the process at once, with one line.

    Nothing is lost then. A KeyboardInterrupt could come into Python that C++ has called, as torch
    does while it is imported, and would end in abort(), or be taken for another error.
    """

    def end(*_: object) -> None:
        with suppress(OSError):
            os.write(2, f"{program}: interrupted\n".encode())
        os._exit(EXIT_INTERRUPTED)

    heard = threading.current_thread() is threading.main_thread()
    if not heard or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # somebody else has an answer to signals, or they are ignored
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def load_torch(program: str) -> None:
    """Imports torch, which takes seconds, before what needs it."""
    with loading(program):
        wait_briefly()
        import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]


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
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        pass  # the reader has seen enough (| head)
    except (OSError, ValueError) as error:
        print(f"cannot write the output: {error}", file=sys.stderr)
        code = code or 1
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
