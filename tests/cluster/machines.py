"""A cluster on this machine: nodes as namespaces, with the real sshd, munge and Slurm.

A node has its own network, address, processes, host name, /tmp, /run, /dev/shm and /etc/hosts; the
rest of the file system is common to all, as on a network disk. As Debian's installer leaves it, a
node's own name is 127.0.1.1 at home. Nothing leaves the namespaces, nothing is installed.

Not as on a real cluster: one kernel and its cores, everybody is root, no GPUs, no cgroups.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "gpst-test-"
SWITCH = f"{PREFIX}switch"
NETWORK = "10.79.13"
PACKAGES = {
    "ip": "iproute2", "pkill": "procps", "sshd": "openssh-server", "ssh": "openssh-client",
    "pdsh": "pdsh", "munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm",
    "nsenter": "util-linux",
}  # fmt: skip
"""Programs, and the Debian packages that have them."""
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def why_not() -> str | None:
    """Why a cluster cannot be brought up here; None: it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs Linux and root, for namespaces"
    missing = [name for name in PACKAGES if shutil.which(name, path=_SYSTEM) is None]
    if missing:
        packages = sorted({PACKAGES[name] for name in missing})
        return f"no {', '.join(missing)}: apt-get install {' '.join(packages)}"
    tried = subprocess.run(
        [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "ip",
            "link",
            "add",
            "br0",
            "type",
            "bridge",
        ],
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
        self._first: dict[str, subprocess.Popen[bytes]] = {}
        """What holds the first process of each machine."""

    def address(self, name: str) -> str:
        """A machine's address."""
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def up(self) -> None:
        """Starts all machines and waits until Slurm has them."""
        self.down()  # of a test that was killed
        self._write_settings()
        _do("ip", "netns", "add", SWITCH)
        _do("ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", SWITCH, "link", "set", "br0", "up")
        for name in self.names:
            self.boot(name)
        idle = ["sinfo", "-h", "-t", "idle", "-N", "-o", "%N"]
        wait_for(lambda: len(self.run("node1", *idle).stdout.split()) == len(self.names), 60)

    def down(self) -> None:
        """Ends all machines."""
        for name in self.names:
            self.kill(name)
        subprocess.run(["ip", "netns", "del", SWITCH], capture_output=True)

    def boot(self, name: str) -> None:
        """Starts a machine."""
        space, link = PREFIX + name, f"gt{name}"
        _do("ip", "netns", "add", space)
        _do("ip", "-n", SWITCH, "link", "add", link, "type", "veth", "peer", "eth0", "netns", space)
        _do("ip", "-n", SWITCH, "link", "set", link, "master", "br0", "up")
        _do("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _do("ip", "-n", space, "link", "set", interface, "up")
        ready = self.folder / f"up.{name}"
        ready.unlink(missing_ok=True)
        shared = {str(ROOT), os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
        spaces = ["--uts", "--ipc", "--pid", "--mount", "--fork", "--mount-proc"]
        with (self.folder / "log" / name).open("ab") as log:
            self._first[name] = subprocess.Popen(
                [
                    *("ip", "netns", "exec", space, "unshare", *spaces, "--propagation", "private"),
                    *("bash", str(ROOT / "tests/cluster/node.sh"), name, str(self.folder), *shared),
                ],
                env={"PATH": _SYSTEM},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(ready.exists, 30)

    def kill(self, name: str) -> None:
        """A machine loses power: everything on it dies at once."""
        numbers = subprocess.run(
            ["ip", "netns", "pids", PREFIX + name], capture_output=True, text=True
        ).stdout
        for number in map(int, numbers.split()):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if name in self._first:
            self._first.pop(name).wait()
        subprocess.run(["ip", "netns", "del", PREFIX + name], capture_output=True)

    @contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """Inside, a machine's network cable is out."""
        _do("ip", "-n", PREFIX + name, "link", "set", "eth0", "down")
        yield
        _do("ip", "-n", PREFIX + name, "link", "set", "eth0", "up")

    @contextmanager
    def without_names(self) -> Iterator[None]:
        """Inside, no machine knows another's name."""
        for name in self.names:
            (self.folder / f"hosts.{name}").write_text("127.0.0.1 localhost\n")
        yield
        self._write_hosts()

    def start(self, name: str, *command: object, **variables: str) -> subprocess.Popen[str]:
        """A command on a machine, as if somebody had logged in; errors go to its output."""
        number = str(self._number(self._first[name]))
        return subprocess.Popen(
            ["nsenter", "-t", number, "-a", f"--wd={self.folder}", *map(str, command)],
            env=self._environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def signal(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Sends a signal to a command that `start` has started: its parent is here, nsenter."""
        os.kill(self._number(process), number)

    def run(
        self, name: str, *command: object, timeout_s: float = 300, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A command on a machine, once it has ended."""
        process = self.start(name, *command, **variables)
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            raise AssertionError(f"not done after {timeout_s} s: {command}\n{out}") from None
        return subprocess.CompletedProcess([*map(str, command)], process.returncode, out)

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}:{_SYSTEM}",
            "HOME": "/root",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    @staticmethod
    def _number(holder: subprocess.Popen[Any]) -> int:
        """The process in the machine's namespaces, as this machine numbers it."""
        path = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        return int(path.read_text().split()[0])

    def _write_hosts(self) -> None:
        others = [f"{self.address(name)} {name}" for name in self.names]
        for name in self.names:
            # The file itself is mounted: its text changes in place.
            text = "\n".join(["127.0.0.1 localhost", f"127.0.1.1 {name}", *others, ""])
            (self.folder / f"hosts.{name}").write_text(text)

    def _write_settings(self) -> None:
        folder = self.folder
        (folder / "log").mkdir(parents=True, exist_ok=True)
        for key in ("key", "host_key"):
            if not (folder / key).exists():
                _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        known = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(
            "".join(f"{name},{self.address(name)} {known}" for name in self.names)
        )
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/key.pub\nStrictModes no\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\n"
            "PidFile none\nUseDNS no\n"
        )
        (folder / "ssh_config").write_text(
            f"IdentityFile {folder}/key\nUserKnownHostsFile {folder}/known_hosts\nBatchMode yes\n"
        )
        self._write_hosts()
        (folder / "controller.node1").touch()
        (folder / "slurm.conf").write_text(self._slurm_settings())
        for number in range(8):  # GPUs are files, to Slurm
            (folder / f"gpu{number}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _slurm_settings(self) -> str:
        nodes, machine = ",".join(self.names), "CPUs=64 Gres=gpu:8 State=UNKNOWN"
        lines = [
            "ClusterName=test", f"SlurmctldHost=node1({self.address('node1')})", "SlurmUser=root",
            "AuthType=auth/munge",
            "AuthInfo=cred_expire=5",  # what a requeued job waits for
            f"StateSaveLocation={self.folder}/state", "SlurmdSpoolDir=/run/slurmd",
            "SlurmctldPidFile=/run/slurmctld.pid", "SlurmdPidFile=/run/slurmd.pid",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",
            "SchedulerParameters=sched_interval=2,bf_interval=2",
            "MpiDefault=pmi2", "ReturnToService=2", "KillWait=30", "SlurmdTimeout=20",
            "GresTypes=gpu",
            *(f"NodeName={n} NodeAddr={self.address(n)} {machine}" for n in self.names),
            f"PartitionName=all Nodes={nodes} Default=YES State=UP",
        ]  # fmt: skip
        return "\n".join([*lines, ""])


def wait_for(happened: Callable[[], object], timeout_s: float = 200.0) -> None:
    """Waits until something has happened."""
    limit = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.2)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
