"""A cluster on this machine: nodes as namespaces, with the real sshd, munge and Slurm.

A node has its own network, address, processes, host name, home, /tmp, /run, /dev/shm and
/etc/hosts; the rest of the file system is common to all, as on a network disk. As Debian's
installer leaves it, a node's own name is 127.0.1.1 at home. Nothing leaves the namespaces, nothing
is installed. They have no names outside and end with the process that made them, however it ends.
Several clusters do not meet. As a command it prints the packages that are missing.

Not as on a real cluster: one kernel and its cores, everybody is root, no GPUs, no cgroups.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine_settings import write_settings

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.79.13"
PACKAGES = {
    "ip": "iproute2", "pkill": "procps", "sshd": "openssh-server", "ssh": "openssh-client",
    "pdsh": "pdsh", "munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm",
    "nsenter": "util-linux", "setpriv": "util-linux",
}  # fmt: skip
"""Programs, and the Debian packages that have them."""
PATIENCE_S = 600.0
"""For what takes seconds on a machine that has nothing else to do."""
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEFAULTS = ("env", "--default-signal")
"""Before a command: whatever started the tests in the background, Ctrl-C is not ignored."""
_OWN = (
    *_DEFAULTS,
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child"),
    *("--net", "--mount", "--propagation", "private"),
)
"""Before a command: in namespaces of its own, and killed when the process that started it ends."""


def missing_packages() -> list[str]:
    """The Debian packages of the programs that this machine does not have."""
    return sorted({PACKAGES[name] for name in PACKAGES if not shutil.which(name, path=_SYSTEM)})


def why_not() -> str | None:
    """Why a cluster cannot be brought up here; None: it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs Linux and root, for namespaces"
    missing = missing_packages()
    if missing:
        return f"apt-get install {' '.join(missing)}"
    tried = subprocess.run(
        [*_OWN, "--pid", *("ip", "link", "add", "br0", "type", "bridge")],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        return f"this system allows no namespaces with a network: {tried.stderr.strip()}"
    return None


class Cluster:
    """Machines node1, node2, ...; Slurm's controller is on the first."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.folder = folder
        self.names = [f"node{number}" for number in range(1, count + 1)]
        self._switch: subprocess.Popen[bytes] | None = None
        """What holds the network between the machines."""
        self._first: dict[str, subprocess.Popen[bytes]] = {}
        """What holds the first process of each machine."""
        self._commands: list[subprocess.Popen[str]] = []
        """What was started since `clear`."""

    def address(self, name: str) -> str:
        """A machine's address."""
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def up(self) -> None:
        """Starts all machines and waits until Slurm has them."""
        write_settings(self.folder, {name: self.address(name) for name in self.names})
        self._switch = self._apart("switch", "sleep", "infinity")
        self._ip("link", "add", "br0", "type", "bridge")
        self._ip("link", "set", "br0", "up")
        for name in self.names:
            self.boot(name)
        idle = ["sinfo", "-h", "-t", "idle", "-N", "-o", "%N"]
        wait_for(lambda: len(self.run("node1", *idle).stdout.split()) == len(self.names), 60)

    def down(self) -> None:
        """Ends all machines."""
        for holder in [*self._first.values(), *([self._switch] if self._switch else [])]:
            self._end(holder)

    def boot(self, name: str) -> None:
        """Starts a machine."""
        ready, link = self.folder / f"up.{name}", f"to-{name}"
        ready.unlink(missing_ok=True)
        shared = {str(ROOT), os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
        self._first[name] = self._apart(
            name, *("--uts", "--ipc", "--pid", "--mount-proc"),
            *("bash", str(ROOT / "tests/cluster/node.sh"), name, self.address(name)),
            str(self.folder), *shared,
        )  # fmt: skip
        number = str(self._number(self._first[name]))
        self._ip("link", "add", link, "type", "veth", "peer", "eth0", "netns", number)
        self._ip("link", "set", link, "master", "br0", "up")
        wait_for(ready.exists, 60)

    def kill(self, name: str) -> None:
        """A machine loses power: everything on it dies at once."""
        self._end(self._first.pop(name))
        # Its network would go a little later.
        subprocess.run([*self._on_switch, "ip", "link", "del", f"to-{name}"], capture_output=True)

    def _apart(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A command in namespaces of its own, once it has them."""
        with (self.folder / "log" / name).open("ab") as log:
            holder = subprocess.Popen(
                [*_OWN, *command],
                env={"PATH": _SYSTEM},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(lambda: holder.poll() is not None or self._children(holder), 30)
        assert holder.poll() is None, (self.folder / "log" / name).read_text()
        return holder

    def _end(self, holder: subprocess.Popen[bytes]) -> None:
        """Returns when all of its namespaces has ended; the holder waits for its child."""
        for number in self._children(holder):
            os.kill(number, signal.SIGKILL)
        holder.wait()

    @property
    def _on_switch(self) -> list[str]:
        assert self._switch is not None
        return ["nsenter", "-t", str(self._number(self._switch)), "--net"]

    def _ip(self, *words: str) -> None:
        """A command `ip` on the network between the machines."""
        done = subprocess.run([*self._on_switch, "ip", *words], capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stderr}"

    @contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """Inside, a machine's network cable is out."""
        self._ip("link", "set", f"to-{name}", "down")
        try:
            yield
        finally:
            self._ip("link", "set", f"to-{name}", "up")

    @contextmanager
    def without_names(self) -> Iterator[None]:
        """Inside, no machine knows another's name."""
        files = [self.folder / f"hosts.{name}" for name in self.names]
        before = [path.read_text() for path in files]
        for path in files:  # the file itself is mounted: its text changes in place
            path.write_text("127.0.0.1 localhost\n")
        try:
            yield
        finally:
            for path, text in zip(files, before, strict=True):
                path.write_text(text)

    def start(self, name: str, *command: object, **variables: str) -> subprocess.Popen[str]:
        """A command on a machine, as if somebody had logged in; errors go to its output."""
        number = str(self._number(self._first[name]))
        enter = (*_DEFAULTS, "nsenter", "-t", number, "-a", f"--wd={self.folder}")
        process = subprocess.Popen(
            [*enter, *map(str, command)],
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._commands.append(process)
        return process

    def signal(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Sends a signal to a command that `start` has started: its parent is here, nsenter."""
        os.kill(self._number(process), number)

    def output(self, process: subprocess.Popen[str], timeout_s: float = PATIENCE_S) -> str:
        """What a command has printed, once it has ended."""
        try:
            return process.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired as error:
            said = (error.output or b"").decode(errors="replace")
            raise AssertionError(f"not done after {timeout_s} s: {error.cmd}\n{said}") from None

    def run(
        self, name: str, *command: object, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A command on a machine, once it has ended."""
        process = self.start(name, *command, **variables)
        out = self.output(process)
        return subprocess.CompletedProcess([*map(str, command)], process.returncode, out)

    def clear(self) -> None:
        """Ends what runs on the machines besides their daemons."""
        self.run("node1", "scancel", "--user=root", "--signal=KILL")
        for name in self.names:
            self.run(name, "pkill", "-KILL", "-f", "python|mpirun|prted|srun|salloc|pdsh")
        for process in self._commands:
            process.communicate()
        self._commands.clear()

    @property
    def environment(self) -> dict[str, str]:
        """Of somebody who has logged in."""
        return {
            "PATH": f"{Path(sys.executable).parent}:{_SYSTEM}",
            "HOME": pwd.getpwuid(0).pw_dir,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }

    @classmethod
    def _number(cls, holder: subprocess.Popen[Any]) -> int:
        """The process in the machine's namespaces, as this machine numbers it."""
        return cls._children(holder)[0]

    @staticmethod
    def _children(holder: subprocess.Popen[Any]) -> list[int]:
        path = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        return [*map(int, path.read_text().split())]


def wait_for(happened: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Waits until something has happened."""
    limit = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.2)


if __name__ == "__main__":
    print(*missing_packages())
