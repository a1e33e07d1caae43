"""All ranks, once they are connected: collectives, and the watch over the others (see ranks.py)."""

import gc
import os
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import distributed_c10d

from pipeline.distributed import environment
from pipeline.distributed.addresses import LOCAL_HOST, interface_of
from pipeline.distributed.placement import SLURM, Placement
from pipeline.distributed.rendezvous import Rendezvous
from pipeline.distributed.signals import StopRequest
from pipeline.errors import ConfigError

T = TypeVar("T")


class World:
    """All ranks, once they have met: collectives that DeepSpeed does not make for us."""

    def __init__(self, placement: Placement, device: torch.device, stop: StopRequest) -> None:
        self.rank = placement.rank
        self.size = placement.size
        self.local_rank = placement.local_rank
        self.is_main = placement.rank == 0
        self.device = device
        self.stop = stop
        self.end_groups: Callable[[], None] = distributed.destroy_process_group
        """Ends all process groups; replaced by what makes more of them."""

    def wishes(self) -> tuple[bool, bool]:
        """Whether any rank should end the run, or wants a checkpoint; the same on all."""
        wishes = [int(self.stop.requested), int(self.stop.takes_save())]
        end, save = self.sum(torch.tensor(wishes, device=self.device)).tolist()
        return bool(end), bool(save)

    def sum(self, values: Tensor) -> Tensor:
        """The tensor, summed over the ranks in place."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.size > 1:
            distributed.barrier()

    def broadcast(self, value: T) -> T:
        """Rank 0's value (anything picklable), on every rank."""
        if self.size == 1:
            return value
        box: list[T] = [value]
        distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Every rank's value (anything picklable), in the order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def peak_memory_gib(self) -> float:
        """Most memory of this rank: of its GPU since the last call, or of the process so far."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            return peak / (1 << 30)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def settle_environment(placement: Placement) -> None:
    """Sets what torch and DeepSpeed read from the environment, and the threads of this rank."""
    os.environ.update(
        RANK=str(placement.rank),
        WORLD_SIZE=str(placement.size),
        LOCAL_RANK=str(placement.local_rank),
        MASTER_ADDR=placement.address,
        MASTER_PORT=str(placement.port),
    )
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Levels of charts have other sizes in every batch: blocks of fixed sizes would fragment.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    threads = environment.threads(os.environ) or cores_of_a_rank(placement, os.environ)
    torch.set_num_threads(threads)


def cores_of_a_rank(placement: Placement, environ: Mapping[str, str]) -> int:
    """Cores for this rank: its share of what the ranks of this machine have, or those it is on.

    A launcher that gives each rank cores of its own (Slurm, mpirun) has divided them already.
    """
    own = len(os.sched_getaffinity(0))
    if placement.launcher == SLURM and environ.get("SLURM_CPUS_ON_NODE", "").isdigit():
        all_ranks = int(environ["SLURM_CPUS_ON_NODE"])
    else:
        all_ranks = own
        with suppress(OSError):
            all_ranks = max(own, len(os.sched_getaffinity(os.getppid())))
    return max(1, min(own, all_ranks // placement.local_size))


def _device(rendezvous: Rendezvous) -> torch.device:
    placement = rendezvous.placement
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
        return torch.device("cpu")
    number, visible = placement.local_rank, torch.cuda.device_count()
    if visible == 1 and number > 0:
        number = 0  # srun --gpus-per-task=1 shows each rank its own alone
    if number >= visible:
        raise ConfigError(
            f"local rank {number} has no GPU of its own: this machine shows {visible} (start that "
            "many ranks, or DS_ACCELERATOR=cpu)"
        )
    if visible == 1 and placement.local_size > 1:
        _check_own_gpu(rendezvous)
    os.environ["LOCAL_RANK"] = str(number)  # DeepSpeed takes it for the number of the GPU
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _check_own_gpu(rendezvous: Rendezvous) -> None:
    """Refuses two ranks on the one GPU that each of them sees."""
    rank, host = str(rendezvous.placement.rank), socket.gethostname()
    gpu = f"{host}/{torch.cuda.get_device_properties(0).uuid}"
    first = bytes(rendezvous.store.compare_set(f"gpu/{gpu}", "", rank)).decode()
    if first != rank:
        raise ConfigError(
            f"ranks {first} and {rank} have the same GPU of {host}, the only one that each of them "
            "sees: start a rank per GPU, or DS_ACCELERATOR=cpu"
        )


@contextmanager
def open_world(
    rendezvous: Rendezvous, stop: StopRequest, timeout_minutes: float
) -> Iterator[World]:
    """The connected ranks; signals ask them to stop inside. All ranks enter and leave together.

    Args:
        timeout_minutes: longest wait for another rank in a collective, of all process groups.
    Raises:
        ConfigError: this rank has no GPU, or no network interface of the wanted name.
    """
    placement = rendezvous.placement
    device = _device(rendezvous)
    _choose_interface(rendezvous.interface())
    environment.check_interfaces(os.environ, device.type)
    timeout = timedelta(minutes=timeout_minutes)
    # DeepSpeed makes further groups, and gives them no limit.
    distributed_c10d.default_pg_timeout = distributed_c10d.default_pg_nccl_timeout = timeout
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=distributed.PrefixStore("group", rendezvous.store),
        rank=placement.rank,
        world_size=placement.size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    stop.wait_for_the_step()
    world = World(placement, device, stop)
    try:
        yield world
        world.barrier()
    except BaseException:
        # Among several ranks the group may be broken: the process ends without it.
        if placement.size == 1:
            world.end_groups()
        raise
    rendezvous.part()
    world.end_groups()
    gc.collect()  # an object with a group keeps its threads


def _choose_interface(name: str | None) -> None:
    """Lets collectives use the network that reaches the other machines, unless the user chose.

    gloo would take that of this machine's own name, which is 127.0.1.1 on Debian.
    """
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(LOCAL_HOST) or "lo")
