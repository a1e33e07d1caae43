"""The settings of the machines' ssh, munge and Slurm, and what each machine calls the others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

GPUS = 8
"""GPUs that Slurm believes a machine to have; node.sh makes as many devices."""


def write_settings(folder: Path, addresses: Mapping[str, str]) -> None:
    """Writes what node.sh needs.

    Args:
        addresses: machine -> its address; Slurm's controller is on the first.
    """
    for name in ("log", "home"):
        (folder / name).mkdir()
    for name, address in addresses.items():
        others = "".join(f"{address} {name}\n" for name, address in addresses.items())
        (folder / f"hosts.{name}").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{others}")
    _write_ssh(folder, addresses)
    (folder / "munge.key").touch(mode=0o600)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / f"controller.{next(iter(addresses))}").touch()
    (folder / "slurm.conf").write_text(_slurm(folder, addresses))
    (folder / "gres.conf").write_text(f"Name=gpu File=/run/gpu[0-{GPUS - 1}]\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")


def _write_ssh(folder: Path, addresses: Mapping[str, str]) -> None:
    for key in ("key", "host_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True)
    known = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(
        "".join(f"{name},{address} {known}" for name, address in addresses.items())
    )
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/key.pub\nStrictModes no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\n"
        "PidFile none\nUseDNS no\n"
    )
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/key\nUserKnownHostsFile {folder}/known_hosts\nBatchMode yes\n"
    )


def _slurm(folder: Path, addresses: Mapping[str, str]) -> str:
    head, address = next(iter(addresses.items()))
    machine = f"CPUs=64 Gres=gpu:{GPUS} State=UNKNOWN"
    lines = [
        "ClusterName=test", f"SlurmctldHost={head}({address})", "SlurmUser=root",
        "AuthType=auth/munge",
        "AuthInfo=cred_expire=5",  # what a requeued job waits for
        f"StateSaveLocation={folder}/state", "SlurmdSpoolDir=/run/slurmd",
        "SlurmctldPidFile=/run/slurmctld.pid", "SlurmdPidFile=/run/slurmd.pid",
        "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",
        "SchedulerParameters=sched_interval=2,bf_interval=2",
        "MpiDefault=pmi2", "ReturnToService=2", "KillWait=30", "SlurmdTimeout=20",
        "GresTypes=gpu",
        *(f"NodeName={name} NodeAddr={where} {machine}" for name, where in addresses.items()),
        f"PartitionName=all Nodes={','.join(addresses)} Default=YES State=UP",
    ]  # fmt: skip
    return "\n".join([*lines, ""])
