"""Scripts started as forks of a process that has loaded what ranks load.

    rank_server.py     reads requests, a line of JSON each, and answers each with a line

{"script", "arguments", "environment", "out", "err"}: a fork runs the script as __main__, with this
environment alone and its output in these files, to the interpreter's ordinary end; the answer is
its process number. {"poll": number}: the answer is the exit code of that fork, or null.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Fork:
    """One fork of a server, as `subprocess.Popen` has it."""

    def __init__(self, server: RankServer, pid: int, out: Path, err: Path) -> None:
        self.pid, self.returncode = pid, None
        self._server, self._files = server, (out, err)

    def poll(self) -> int | None:
        """The exit code, or None."""
        if self.returncode is None:
            self.returncode = self._server.ask(poll=self.pid)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """(stdout, stderr), once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, after `timeout` seconds.
        """
        began = time.monotonic()
        while self.poll() is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)
        out, err = (file.read_text() for file in self._files)
        return out, err

    def send_signal(self, number: int) -> None:
        """To a fork that has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class RankServer:
    """The server's other side; `start` is what to call."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def ask(self, **request: Any) -> Any:
        """The answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(
        self, script: Path, arguments: list[str], environment: dict[str, str], files: Path
    ) -> Fork:
        """A fork that runs a script; `files`.out and .err get its output."""
        out, err = files.with_suffix(".out"), files.with_suffix(".err")
        pid = self.ask(
            script=str(script),
            arguments=arguments,
            environment=environment,
            out=str(out),
            err=str(err),
        )
        return Fork(self, pid, out, err)

    def close(self) -> None:
        """Ends the server; forks that are left stay."""
        self._process.communicate()


def become(request: dict[str, Any]) -> None:
    """Makes this fork the process of a script: its files, environment and arguments."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["script"], *request["arguments"]]


def serve() -> str | None:
    """Answers requests until there are no more; in a fork, returns the script that it is to run."""
    codes: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            number = request["poll"]
            if number not in codes:
                ended, status = os.waitpid(number, os.WNOHANG)
                if ended:
                    codes[number] = os.waitstatus_to_exitcode(status)
            answer = codes.get(number)
        else:
            answer = os.fork()
            if answer == 0:
                become(request)
                return request["script"]
        print(json.dumps(answer), flush=True)
    return None


if __name__ == "__main__":
    import loaded  # noqa: F401

    script = serve()
    if script is not None:
        runpy.run_path(script, run_name="__main__")
