"""Where ranks meet before they have collectives, and where the first failure is recorded.

Ranks share a key-value store. The first rank that fails writes its exit code into it, so that
exactly one line is printed and every rank ends with the same code, also when the others only see a
broken connection, or nothing at all (a collective that would wait for its time-out).
"""

import json
import sys
import time
import traceback
from contextlib import suppress
from datetime import timedelta

from torch import distributed

from pipeline.distributed import meeting
from pipeline.distributed.addresses import LOCAL_HOST, interface_of, is_loopback, outgoing_address
from pipeline.distributed.meeting import Arrivals, Patience, Way
from pipeline.distributed.placement import Placement
from pipeline.distributed.signals import StopRequest
from pipeline.distributed.watch import Watch, record_failure
from pipeline.errors import EXIT_FAILURE, TrainingError, explain

READY_TIMEOUT = timedelta(hours=1)
"""How long to wait for rank 0's checks (it may compute a table of contexts)."""
LEAVE_TIMEOUT_S = 10.0
"""How long a failed rank 0 keeps the store open for others, which may still be starting."""
SHORT_LEAVE_TIMEOUT_S = 2.0
"""The same when it failed because another rank is dead."""


class Rendezvous:
    """The store of the ranks: who has come, whether rank 0 is ready, and the first failure."""

    def __init__(self, patience: Patience) -> None:
        """Connects to the store, which rank 0 serves, and begins to watch the other ranks.

        Raises:
            ConfigError: rank 0 cannot be reached, or its port is another run's.
            EarlyStop, KeyboardInterrupt: a signal came.
        """
        self.placement, self.program = patience.placement, patience.program
        self._patience, self._way = patience, Way()
        self.store: distributed.Store = distributed.HashStore()
        if self.placement.size == 1:
            self._watch = Watch(patience)
            return
        self._lobby, self._way = meeting.connect(patience)
        start = meeting.join(patience, self._lobby)
        self.store = distributed.PrefixStore(start, self._lobby)
        self._arrivals = Arrivals(self.placement, start)
        if self.placement.rank == 0:
            self.store.set("failed", "")
        meeting.arrive(self.placement, self.store, self._way)
        if self.placement.rank:  # rank 0 answers those who come only once it has arrived
            self._arrivals.hosts[0] = bytes(self.store.get("host")).decode()
        own = self._lobby.clone()  # type: ignore[attr-defined]
        self._watch = Watch(
            patience,
            distributed.PrefixStore(start, own),
            self._arrivals.hosts,
            lambda: self._arrivals.complete(own),
        )

    @classmethod
    def open(
        cls,
        placement: Placement,
        program: str,
        limit_s: float = 600.0,
        stop: StopRequest | None = None,
    ) -> "Rendezvous":
        """Meets the others; see __init__.

        Args:
            limit_s: longest wait for another rank, in seconds.
        """
        return cls(Patience(placement, program, limit_s, stop))

    def wait_for_rank_0(self) -> None:
        """Waits until rank 0 has called `set_ready`.

        Raises:
            TrainingError: it has failed or gone instead; `fail` then ends this rank quietly.
        """
        if self.placement.rank == 0:
            return
        patience = Patience(
            self.placement, self.program, READY_TIMEOUT.total_seconds(), self._patience.stop
        )
        try:
            patience.wait(
                lambda: self.store.check(["ready"]), "the checks of rank 0", lambda: "its output"
            )
            failed = self.failed_code(self.store) is not None
        except RuntimeError:
            failed = True
        if failed:
            raise TrainingError("rank 0 ended before the ranks met")

    def set_ready(self) -> None:
        """Rank 0: lets the others go on, once all have come.

        Raises:
            ConfigError: a rank did not come in time; names it.
        """
        if self.placement.rank:
            return
        if self.placement.size > 1:
            self._arrivals.wait_for_all(self._patience, self._lobby)
        self.store.set("ready", "")

    def interface(self) -> str | None:
        """The network interface of this machine that reaches the others; once rank 0 is ready.

        None: all ranks are on this machine.
        """
        if self.placement.size == 1 or not self.store.check(["address"]):
            return None
        address = self._way.own
        if is_loopback(address):  # on rank 0's machine: as the others see it
            address = bytes(self.store.get("address")).decode()
        # An address of none of our interfaces is a router's.
        return interface_of(address) or interface_of(outgoing_address() or LOCAL_HOST)

    def part(self) -> None:
        """All ranks are done: the watch ends."""
        self._watch.end()

    def fail(self, error: BaseException) -> int:
        """Records and prints the error, unless another rank failed first; returns the exit code."""
        line, code = explain(error) or (_describe(error), EXIT_FAILURE)
        self._watch.stand_by()
        first = None
        with suppress(RuntimeError):  # rank 0 and its store may be gone: then this rank prints
            first = record_failure(self.store, {"rank": self.placement.rank, "code": code})
            self.store.set("ready", "")
        if first is None:
            _print_failure(error, line, self.placement, self.program)
        else:
            code = first["code"]
        lost = _is_lost_contact(error)
        self._leave_last(SHORT_LEAVE_TIMEOUT_S if lost else LEAVE_TIMEOUT_S)
        return code

    def failed_code(self, store: distributed.Store) -> int | None:
        """The exit code of the first failed rank, if any."""
        record = bytes(store.get("failed")) if store.check(["failed"]) else b""
        return json.loads(record)["code"] if record else None

    def _leave_last(self, timeout_s: float) -> None:
        """Rank 0 waits for the others to leave: the store ends with it."""
        if self.placement.size == 1:
            return
        with suppress(RuntimeError):
            left = self.store.add("left", 1)
            deadline = time.monotonic() + timeout_s
            while self.placement.rank == 0 and left < self.placement.size:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
                left = self.store.add("left", 0)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _print_failure(error: BaseException, line: str, placement: Placement, program: str) -> None:
    of = f" (rank {placement.rank})" if placement.rank else ""
    if explain(error) is None and _is_lost_contact(error) and placement.size > 1:
        line = f"another rank died or lost its connection: {line}; start again to resume"
    elif explain(error) is None:
        traceback.print_exception(error)
    print(f"{program}{of}: {line}", file=sys.stderr, flush=True)


def _is_lost_contact(error: BaseException) -> bool:
    if isinstance(error, distributed.DistError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        sign in text for sign in ("onnection closed by peer", "onnection reset", "gloo")
    )
