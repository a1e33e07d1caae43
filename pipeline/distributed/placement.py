"""Which rank this process is: the variables that launchers set, read in one place.

Known are the DeepSpeed launcher and torchrun (RANK, WORLD_SIZE, ...), OpenMPI (OMPI_*), MPICH and
Intel MPI (PMI_*), Slurm's srun (SLURM_*), and no launcher at all (one rank).
"""

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.distributed import environment
from pipeline.distributed.addresses import LOCAL_HOST, outgoing_address, resolve
from pipeline.errors import EXIT_USAGE, ConfigError

DEFAULT_PORT = 29500
SLURM = "Slurm"


@dataclass(frozen=True)
class Placement:
    """One process among the ranks of a run."""

    rank: int
    size: int
    local_rank: int
    """Number of this rank among those of its machine; the index of its GPU."""
    local_size: int
    """Ranks on this machine."""
    address: str
    """Where rank 0 listens."""
    port: int
    launcher: str
    """Whose variables these are, for messages."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size or not 0 <= self.local_rank < self.local_size:
            raise ConfigError(
                f"{self.launcher} says rank {self.rank} of {self.size}, local rank "
                f"{self.local_rank} of {self.local_size}: unset stale rank variables or start again"
            )


def find_placement(environ: Mapping[str, str]) -> Placement:
    """This process's place, from the variables of whichever launcher started it.

    Raises:
        ConfigError: variables that are incomplete or not numbers, or several machines without
            MASTER_ADDR where the launcher does not say where rank 0 is.
    """
    # MPI before Slurm: under `mpirun` in a Slurm job SLURM_PROCID is that of the MPI daemon.
    for read in (_from_torch, _from_openmpi, _from_pmi, _from_slurm):
        placement = read(environ)
        if placement is not None:
            return placement
    return Placement(0, 1, 0, 1, LOCAL_HOST, DEFAULT_PORT, "no launcher")


def is_rank_of_launcher(environ: Mapping[str, str]) -> bool:
    """Whether torchrun or deepspeed started this process: a platform sets RANK alone."""
    return "RANK" in environ and "LOCAL_RANK" in environ


def check_local_size(placement: Placement, environ: Mapping[str, str]) -> None:
    """Raises ConfigError where LOCAL_SIZE asks for ranks that nobody has started."""
    wanted = environment.local_size(environ) or 1
    if placement.size == 1 < wanted:
        raise ConfigError(
            f"LOCAL_SIZE={wanted} asks for {wanted} ranks, and this is one rank alone "
            f"({placement.launcher}): start with bash or deepspeed, or unset LOCAL_SIZE"
        )


def _from_torch(environ: Mapping[str, str]) -> Placement | None:
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    environment.check_counts_ranks(environ)
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_rank = _number(environ, "LOCAL_RANK", 0 if size == 1 else None)
    # torchrun calls it LOCAL_WORLD_SIZE, the DeepSpeed launcher LOCAL_SIZE.
    name = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in environ else "LOCAL_SIZE"
    local_size = _number(environ, name, size)
    address = environ.get("MASTER_ADDR", LOCAL_HOST)
    port = environment.master_port(environ) or DEFAULT_PORT
    return Placement(rank, size, local_rank, local_size, address, port, "RANK/WORLD_SIZE")


def _from_openmpi(environ: Mapping[str, str]) -> Placement | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    rank, size, local_rank, local_size = (
        _number(environ, f"OMPI_COMM_WORLD_{name}")
        for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    )
    return _with_address(environ, rank, size, local_rank, local_size, "OpenMPI")


def _from_pmi(environ: Mapping[str, str]) -> Placement | None:
    """MPICH, Intel MPI and Cray's PALS. `srun --mpi=pmi2` sets no local rank: that is Slurm's."""
    names = (("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"))
    local = next((pair for pair in names if pair[0] in environ), None)
    if "PMI_RANK" not in environ or (local is None and _is_step(environ)):
        return None
    rank, size = _number(environ, "PMI_RANK"), _number(environ, "PMI_SIZE")
    if local is None and size > 1:
        raise ConfigError(
            f"PMI_RANK={rank} and PMI_SIZE={size} do not say which rank of its machine this is: "
            "set MPI_LOCALRANKID and MPI_LOCALNRANKS too, or start with srun or torchrun"
        )
    local_rank, local_size = (_number(environ, name) for name in local) if local else (0, 1)
    return _with_address(environ, rank, size, local_rank, local_size, "PMI (MPICH, Intel MPI)")


def _is_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process."""
    # SLURM_PROCID alone is also set in a batch script; only srun sets the step's number of tasks.
    return "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ


def _from_slurm(environ: Mapping[str, str]) -> Placement | None:
    if not _is_step(environ):
        return None
    if "SLURM_PTY_PORT" in environ:  # `srun --pty bash`: somebody types here
        return None
    rank, size = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", str(size))
    counts = _expand_counts(per_node)
    node = _number(environ, "SLURM_NODEID", 0)
    local_size = counts[node] if node < len(counts) else size
    local_rank = _number(environ, "SLURM_LOCALID")
    first = first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
    address = environ.get("MASTER_ADDR") or (first if len(counts) > 1 else LOCAL_HOST)
    port = environment.master_port(environ) or _step_port(environ)
    return Placement(rank, size, local_rank, local_size, address, port, SLURM)


def _step_port(environ: Mapping[str, str]) -> int:
    """A port by the numbers of job and step, so that two of them on a machine do not meet.

    Below the ports that Linux gives to outgoing connections.
    """
    job, step = _number(environ, "SLURM_JOB_ID", 0), _number(environ, "SLURM_STEP_ID", 0)
    return 20000 + (job + 3989 * step) % 12000


def _with_address(
    environ: Mapping[str, str],
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    launcher: str,
) -> Placement:
    address = environ.get("MASTER_ADDR")
    if address is None and local_size < size:
        limit_s = 60.0 * environment.timeout_minutes(environ)
        with _ending_a_silent_mpi(f"rank {rank} of {size}", limit_s, speaks=local_rank == 0):
            address = address_by_mpi(size)
    if address is None and local_size < size:
        raise ConfigError(
            f"{launcher} started {size} ranks on several machines and MASTER_ADDR is not set: "
            "export MASTER_ADDR=<host of rank 0> (mpirun -x MASTER_ADDR=... or -genv), or "
            "pip install mpi4py, which finds it"
        )
    port = environment.master_port(environ) or DEFAULT_PORT
    return Placement(rank, size, local_rank, local_size, address or LOCAL_HOST, port, launcher)


_SLOW_S = 30.0
_SILENT_MPI = (
    "MPI connects the machines over every network that it finds, and docker0, say, has the same "
    "address on all: mpirun --mca btl_tcp_if_include eth0, or what their common network is called"
)


@contextmanager
def _ending_a_silent_mpi(who: str, limit_s: float, speaks: bool) -> Iterator[None]:
    """Inside, MPI may wait for ever: says so after half a minute, and ends the process in time."""
    over = threading.Event()

    def watch() -> None:
        if over.wait(min(_SLOW_S, limit_s)):
            return
        if speaks:
            line = f"{who}: waiting for MPI (since {_SLOW_S:.0f} s; {_SILENT_MPI})"
            print(line, file=sys.stderr, flush=True)
        if not over.wait(limit_s - _SLOW_S):
            line = f"{who} waited {limit_s / 60:.3g} min for MPI: {_SILENT_MPI}"
            print(line, file=sys.stderr, flush=True)
            os._exit(EXIT_USAGE)

    threading.Thread(target=watch, name="MPI", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def address_by_mpi(size: int) -> str | None:
    """The address of rank 0's machine, which mpi4py sends to all ranks.

    As the other machines know it: its own name is often 127.0.1.1 at home (Debian), or unknown.

    None where mpi4py is missing, or speaks to another MPI than the one that started the ranks.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError: no MPI library
        return None
    world = MPI.COMM_WORLD
    if world.Get_size() != size:
        return None
    name, outgoing = world.allgather((socket.gethostname(), outgoing_address()))[0]
    seen = world.allgather(resolve(name))
    MPI.Finalize()  # mpirun takes an end without it for a crash, and ranks end by os._exit
    return next((address for address in seen if address is not None), outgoing)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None:
        if default is None:
            raise ConfigError(f"{name} is not set although the other rank variables are: set it")
        return default
    if not re.fullmatch(r"\d+", text):
        raise ConfigError(f"{name}={text!r}: a whole number is needed")
    return int(text)


def _expand_counts(text: str) -> list[int]:
    """Slurm's tasks per node: "2(x3),1" -> [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE={text!r}: something like 4(x2) is needed")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(nodes: str) -> str:
    """The first machine of a Slurm node list: "gpu[03-07,12],login1" -> "gpu03"."""
    match = re.match(r"([^\[,]+)(?:\[([0-9]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        return LOCAL_HOST
    return match[1] + (match[2] or "") + (match[3] or "")
