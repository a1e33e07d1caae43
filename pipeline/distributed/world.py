"""All ranks, once they are connected: collectives, and the watch over the others (see ranks.py)."""

import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from pipeline.distributed import environment
from pipeline.distributed.placement import LOCAL_HOST, Placement
from pipeline.distributed.rendezvous import Rendezvous
from pipeline.distributed.signals import StopRequest
from pipeline.errors import EXIT_FAILURE, ConfigError

T = TypeVar("T")
GRACE_S = 5.0
"""How long a rank may go on once another has failed."""
WATCH_EVERY_S = 0.5


def collective_timeout_s() -> float:
    """Longest wait for another rank; DEEPSPEED_TIMEOUT (minutes) overrides the 10 minutes."""
    return 60.0 * environment.timeout_minutes(os.environ)


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
    cores = len(os.sched_getaffinity(0))
    threads = environment.threads(os.environ) or max(1, cores // placement.local_size)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    if placement.address == LOCAL_HOST:
        # gloo would ask for this machine's name, which need not resolve in a container.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _device(placement: Placement) -> torch.device:
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
        return torch.device("cpu")
    if placement.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {placement.local_rank} has no GPU of its own: this machine shows "
            f"{torch.cuda.device_count()} (start that many ranks, or DS_ACCELERATOR=cpu)"
        )
    torch.cuda.set_device(placement.local_rank)
    return torch.device("cuda", placement.local_rank)


@contextmanager
def open_world(rendezvous: Rendezvous) -> Iterator[World]:
    """The connected ranks; signals ask them to stop inside. All ranks enter and leave together.

    Raises:
        ConfigError: this rank has no GPU, or no network interface of the wanted name.
    """
    placement = rendezvous.placement
    device = _device(placement)
    environment.check_interfaces(os.environ, device.type)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=distributed.PrefixStore("group", rendezvous.store),
        rank=placement.rank,
        world_size=placement.size,
        timeout=timedelta(seconds=collective_timeout_s()),
        device_id=device if device.type == "cuda" else None,
    )
    with StopRequest() as stop, _watch(rendezvous, stop):
        world = World(placement, device, stop)
        try:
            yield world
            world.barrier()
        except BaseException:
            # Among several ranks the group may be broken: the process ends without it.
            if placement.size == 1:
                world.end_groups()
            raise
    world.end_groups()
    gc.collect()  # an object with a group keeps its threads


@contextmanager
def _watch(rendezvous: Rendezvous, stop: StopRequest) -> Iterator[None]:
    """A thread that ends this rank when another failed, and asks to stop when orphaned."""
    over = threading.Event()
    launcher = _launcher_parent()

    def watch() -> None:
        several = rendezvous.placement.size > 1
        store = rendezvous.store.clone() if several else None  # type: ignore[attr-defined]
        while not over.wait(WATCH_EVERY_S):
            if launcher is not None and _launcher_parent() != launcher:
                stop.launcher_is_gone()
            code = None
            if store is not None:
                try:
                    code = rendezvous.failed_code(store)
                except RuntimeError:
                    code = EXIT_FAILURE  # rank 0 is gone, and the store with it
            if code is not None and not over.wait(GRACE_S):
                os._exit(code)

    thread = threading.Thread(target=watch, name="world-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _launcher_parent() -> int | None:
    """The parent of a DeepSpeed launcher that started this process (the `deepspeed` command).

    Killing `deepspeed` leaves its launcher and the ranks running; the ranks notice by this.
    """
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as command:
            if b"deepspeed.launcher.launch" not in command.read():
                return None
        with open(f"/proc/{os.getppid()}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except OSError:
        return None
