"""How a command's process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENDING = """
import atexit, os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from gpst.cli.process import end_process

class Late:
    def __del__(self):  # as a library's thread that comes into the interpreter's teardown
        os.abort()

late = Late()
atexit.register(print, "handlers run")
threading.Thread(target=lambda: (time.sleep(0.2), print("threads end"))).start()
print("unflushed", end=" ")
end_process(int(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_the_end_of_a_process_has_its_code_whatever_comes_in_the_teardown(code):
    command = [sys.executable, "-c", ENDING, str(ROOT), str(code)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "unflushed threads end\nhandlers run\n")


PRINTS = """
import sys
from gpst.cli.process import end_process
sys.stdout = open(1, "w")  # whatever PYTHONUNBUFFERED says
print(1)
end_process(0)
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_cannot_be_written_at_the_end_is_told():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", PRINTS]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "cannot write the output: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_a_reader_that_has_gone_is_no_failure():
    with subprocess.Popen(
        [sys.executable, "-c", "input()\n" + PRINTS], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")


INTERRUPTED = """
import ctypes, os, signal, sys
from gpst.cli.process import loading

callback = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGINT))
with loading("name"):
    callback()  # C that has called Python, as torch does when it is imported
    print("not here")
"""
AFTERWARDS = """
import os, signal
from gpst.cli.process import loading

with loading("name"):
    pass
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print("as ever")
"""


def test_an_interruption_while_modules_load_is_one_line():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "name: interrupted\n")


def test_an_interruption_afterwards_is_an_exception():
    done = subprocess.run([sys.executable, "-c", AFTERWARDS], cwd=ROOT, capture_output=True)
    assert (done.stdout, done.stderr) == (b"as ever\n", b"")
