"""The ranks of a run: how they meet, talk, fail together and part.

    def prepare(placement): ...   # rank 0 alone, before the ranks meet: everything a user got wrong
    def body(world): ...          # all ranks
    exit_code = launch(prepare, body)

Ranks meet in a key-value store. The first rank that fails writes its line and exit code there, so
that exactly one line is printed and every rank ends with the same code, also when the others only
see a broken connection, or nothing at all (a collective that would wait for its time-out).
"""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from pipeline.distributed import environment
from pipeline.distributed.placement import LOCAL_HOST, Placement, check_local_size, find_placement
from pipeline.distributed.rendezvous import Meeting
from pipeline.distributed.signals import StopRequest
from pipeline.errors import EXIT_FAILURE, EXIT_USAGE, ConfigError, PipelineError

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
        own = [int(self.stop.requested), int(self.stop.takes_save())]
        end, save = self.sum(torch.tensor(own, device=self.device)).tolist()
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


def launch(
    prepare: Callable[[Placement], int | None],
    body: Callable[[World], int],
    program: str = "pretrain",
) -> int:
    """Runs `prepare` on rank 0 and then, unless it gave an exit code, `body` on every rank.

    Returns:
        the exit code. A failed rank among several does not return: it ends the process, because
        the threads of broken connections could keep it from ending.
    """
    try:
        placement = find_placement(os.environ)
        if placement.local_rank == 0:  # variables are alike on a machine: one rank says it
            environment.check(os.environ)
        elif environment.faults(os.environ):
            return EXIT_USAGE
        check_local_size(placement, os.environ)
        _settle_environment(placement)
        meeting = Meeting.open(placement, program)
    except (PipelineError, ConfigError) as error:
        print(f"{program}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    try:
        code = meeting.prepare(prepare)
        if code is None:
            with _open_world(meeting) as world:
                code = body(world)
    except BaseException as error:
        code = meeting.fail(error)
        if placement.size > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


def _settle_environment(placement: Placement) -> None:
    """What torch and DeepSpeed read from the environment, and the threads of this rank."""
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
def _open_world(meeting: Meeting) -> Iterator[World]:
    placement = meeting.placement
    device = _device(placement)
    environment.check_interfaces(os.environ, device.type)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=distributed.PrefixStore("group", meeting.store),
        rank=placement.rank,
        world_size=placement.size,
        timeout=timedelta(seconds=collective_timeout_s()),
        device_id=device if device.type == "cuda" else None,
    )
    with StopRequest() as stop, _watch(meeting, stop):
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
    gc.collect()  # what still holds a group holds its threads


@contextmanager
def _watch(meeting: Meeting, stop: StopRequest) -> Iterator[None]:
    """A thread that ends this rank when another failed, and asks to stop when orphaned."""
    over = threading.Event()
    launcher = _launcher_parent()

    def watch() -> None:
        several = meeting.placement.size > 1
        store = meeting.store.clone() if several else None  # type: ignore[attr-defined]
        while not over.wait(WATCH_EVERY_S):
            if launcher is not None and _launcher_parent() != launcher:
                stop.launcher_is_gone()
            code = None
            if store is not None:
                try:
                    code = meeting.failed_code(store)
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
