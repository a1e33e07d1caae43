"""How ranks find each other: the store of rank 0, and a part of it that is this start's alone.

torchrun's agent keeps its store when it starts the ranks again, with what the dead ones wrote. So
each rank enters a name of its own in a list, and rank 0 answers each name with that of its start.
"""

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta

from torch import distributed

from pipeline.distributed.addresses import LOCAL_HOST, is_loopback, why_unreachable
from pipeline.distributed.placement import Placement
from pipeline.distributed.signals import StopRequest
from pipeline.errors import ConfigError

FIRST_LINE_S = 30.0
"""When a rank that waits says so; again after twice that time, and so on."""
_PROBE_S = 5.0
_STORE_TIMEOUT = timedelta(minutes=5)
_NAMED = 8
"""Ranks that a line names."""


class Patience:
    """Waits of one rank: with a limit, with a line after half a minute, and open to signals.

    Args:
        limit_s: longest wait for another rank, in seconds.
    """

    def __init__(
        self, placement: Placement, program: str, limit_s: float, stop: StopRequest | None
    ) -> None:
        self.placement, self.program = placement, program
        self.limit_s, self.stop = limit_s, stop

    def wait(self, done: Callable[[], bool], what: str, cause: Callable[[], str]) -> None:
        """Waits until `done`.

        Raises:
            ConfigError: it took too long. EarlyStop, KeyboardInterrupt: a signal came.
        """
        began, pause, next_line_s = time.monotonic(), 0.01, FIRST_LINE_S
        while not done():
            if self.stop is not None:
                self.stop.raise_early()
            waited_s = time.monotonic() - began
            if waited_s > self.limit_s:
                raise ConfigError(
                    f"rank {self.placement.rank} of {self.placement.size} waited "
                    f"{waited_s / 60:.3g} min for {what}: {cause()}"
                )
            if waited_s > next_line_s:
                next_line_s *= 2
                if self.placement.local_rank == 0:  # all of a machine wait for the same
                    self.say(f"waiting for {what} (since {waited_s:.0f} s; {cause()})")
            time.sleep(pause)
            pause = min(0.3, 1.5 * pause)

    def say(self, line: str) -> None:
        """Prints a line of this rank."""
        of = f" (rank {self.placement.rank})" if self.placement.rank else ""
        print(f"{self.program}{of}: {line}", file=sys.stderr, flush=True)


def has_agent() -> bool:
    """Whether torchrun's agent serves the store, for one start of the ranks after another."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class Way:
    """The connection of this rank to rank 0's machine, as the two ends see it."""

    own = other = LOCAL_HOST

    @property
    def leaves_the_machine(self) -> bool:
        """Whether rank 0 is on another machine."""
        return self.own != self.other and not is_loopback(self.other)


def connect(patience: Patience) -> tuple[distributed.TCPStore, Way]:
    """This rank's connection to the store.

    Raises:
        ConfigError: rank 0 cannot be reached, or its port is taken.
    """
    placement, way = patience.placement, Way()
    serves = placement.rank == 0 and not has_agent()
    if not serves:
        _find_rank_0(patience, way)
    try:
        store = distributed.TCPStore(
            LOCAL_HOST if serves else placement.address,
            placement.port,
            placement.size,
            is_master=serves,
            wait_for_workers=False,
            timeout=_STORE_TIMEOUT,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"rank {placement.rank} of {placement.size} cannot meet the others at "
            f"{_place(placement)}: {str(error).splitlines()[0]} (a port that is taken: give "
            "another one, with deepspeed --master_port N, else with MASTER_PORT=N)"
        ) from None
    return store, way


def _find_rank_0(patience: Patience, way: Way) -> None:
    """Waits until the place where rank 0 listens can be reached, and notes the way."""
    placement, cause = patience.placement, ""

    def reachable() -> bool:
        nonlocal cause
        try:
            with socket.create_connection((placement.address, placement.port), _PROBE_S) as probe:
                own, other = probe.getsockname(), probe.getpeername()
            if own == other:  # the system has connected it to itself: nobody listens
                raise ConnectionRefusedError
        except OSError as error:
            cause = why_unreachable(error, placement.address)
            return False
        way.own, way.other = own[0], other[0]
        return True

    patience.wait(reachable, f"rank 0 at {_place(placement)}", lambda: cause)


def join(patience: Patience, store: distributed.Store) -> str:
    """The name of this start, which rank 0 gives.

    Raises:
        ConfigError: the store is another run's, or rank 0 does not answer.
    """
    placement = patience.placement
    if not has_agent():
        _check_same_run(placement, store)
    name = uuid.uuid4().hex
    if placement.rank == 0:
        return name
    store.append("names", f"{name}\n")  # type: ignore[attr-defined]
    patience.wait(
        lambda: store.check([f"start/{name}"]),
        f"rank 0 at {_place(placement)}",
        lambda: "a store answers there, but rank 0 has not come to it, or it is another run's",
    )
    return bytes(store.get(f"start/{name}")).decode()


class Arrivals:
    """Rank 0's list of the ranks that have come."""

    def __init__(self, placement: Placement, start: str) -> None:
        self.placement, self._start = placement, start
        self.hosts: dict[int, str] = {}
        """Rank -> its machine."""
        self._answered: set[str] = set()

    def complete(self, store: distributed.Store) -> bool:
        """Answers ranks that have come since the last call; whether all are here.

        Args:
            store: a connection of the calling thread.
        """
        if len(self.hosts) < self.placement.size:
            names = bytes(store.get("names")).decode().split() if store.check(["names"]) else []
            for name in names:
                if name not in self._answered:
                    store.set(f"start/{name}", self._start)
                    self._answered.add(name)
            lines = distributed.PrefixStore(self._start, store).get("arrived")
            for line in bytes(lines).decode().splitlines():
                rank, host = line.split(" ", 1)
                self.hosts[int(rank)] = host
        return len(self.hosts) == self.placement.size

    def missing(self) -> str:
        """Who is not here, and the likely cause."""
        hosts = dict(self.hosts)
        missing = [rank for rank in range(self.placement.size) if rank not in hosts]
        named = ", ".join(map(str, missing[:_NAMED])) + (", ..." if missing[_NAMED:] else "")
        here = ", ".join(sorted(set(hosts.values()))[:_NAMED])
        return (
            f"not here: rank {named}, not started, or unable to reach this address; those that are "
            f"here run on {here}"
        )

    def wait_for_all(self, patience: Patience, store: distributed.Store) -> None:
        """Waits until all have come.

        Raises:
            ConfigError: names the missing ranks.
        """
        what = f"{self.placement.size} ranks at {_place(self.placement)}"
        patience.wait(lambda: self.complete(store), what, self.missing)


def arrive(placement: Placement, store: distributed.Store, way: Way) -> None:
    """Enters this rank, its machine, and rank 0's address where it is another machine.

    Args:
        store: the part of this start.
    """
    store.set(f"beat/{placement.rank}", "0")
    if placement.rank == 0:
        store.set("host", socket.gethostname())
    if way.leaves_the_machine:
        store.compare_set("address", "", way.other)
    store.append("arrived", f"{placement.rank} {socket.gethostname()}\n")  # type: ignore[attr-defined]


def _place(placement: Placement) -> str:
    return f"{placement.address}:{placement.port}"


def _check_same_run(placement: Placement, store: distributed.Store) -> None:
    """Refuses a store that another run serves on this port, before anything is written for it.

    This rank's own rank 0 then fails on the taken port, but the store of the other run is open to
    whoever connects: a failure recorded there would end that run.
    """
    size = bytes(store.compare_set("size", "", str(placement.size))).decode()
    arrivals = store.add(f"came/{placement.rank}", 1)
    if size != str(placement.size) or arrivals > 1:
        raise ConfigError(
            f"rank {placement.rank} of {placement.size}: another run uses port {placement.port} of "
            f"{placement.address}: give another port, with deepspeed --master_port N, else with "
            "MASTER_PORT=N"
        )
