"""Where ranks meet before they have collectives, and where the first failure is recorded.

Ranks share a key-value store. The first rank that fails writes its exit code into it, so that
exactly one line is printed and every rank ends with the same code, also when the others only see a
broken connection, or nothing at all (a collective that would wait for its time-out).
"""

import json
import os
import sys
import time
import traceback
from contextlib import suppress
from datetime import timedelta

from torch import distributed

from pipeline.distributed.placement import Placement
from pipeline.errors import EXIT_FAILURE, ConfigError, TrainingError, explain

READY_TIMEOUT_S = 3600.0
"""How long to wait for rank 0's checks (it may compute a table of contexts)."""
LEAVE_TIMEOUT_S = 10.0
"""How long a failed rank 0 keeps the store open for others, which may still be starting."""
SHORT_LEAVE_TIMEOUT_S = 2.0
"""The same when it failed because another rank is dead."""


class Rendezvous:
    """The store of the ranks: whether rank 0 is ready, and the first failure."""

    def __init__(self, placement: Placement, store: distributed.Store, program: str) -> None:
        self.placement, self.store, self.program = placement, store, program

    @classmethod
    def open(cls, placement: Placement, program: str) -> "Rendezvous":
        """Connects to the store, which rank 0 serves.

        Raises:
            ConfigError: rank 0 cannot be reached, or its port is another run's.
        """
        if placement.size == 1:
            return cls(placement, distributed.HashStore(), program)
        try:
            # Also under torchrun, whose agent already serves the store on this port.
            limit = timedelta(seconds=READY_TIMEOUT_S)
            store, _, _ = next(iter(distributed.rendezvous("env://", timeout=limit)))
        except RuntimeError as error:
            where = f"{placement.address}:{placement.port}"
            raise ConfigError(
                f"rank {placement.rank} of {placement.size} cannot meet the others at {where}: "
                f"{str(error).splitlines()[0]} (a port that is taken: give another one, with "
                "deepspeed --master_port N, else with MASTER_PORT=N)"
            ) from None
        _check_same_run(placement, store)
        return cls(placement, store, program)

    def wait_for_rank_0(self) -> None:
        """Waits until rank 0 has called `set_ready`.

        Raises:
            TrainingError: it has failed or gone instead; `fail` then ends this rank quietly.
        """
        if self.placement.rank == 0:
            return
        try:
            self.store.wait(["ready"], timedelta(seconds=READY_TIMEOUT_S))
            failed = self.failed_code(self.store) is not None
        except RuntimeError:
            failed = True
        if failed:
            raise TrainingError("rank 0 ended before the ranks met")

    def set_ready(self) -> None:
        """Lets the others go on."""
        if self.placement.rank == 0:
            self.store.set("ready", "")

    def fail(self, error: BaseException) -> int:
        """Records and prints the error, unless another rank failed first; returns the exit code."""
        line, code = explain(error) or (_describe(error), EXIT_FAILURE)
        record = json.dumps({"rank": self.placement.rank, "code": code})
        first = record
        with suppress(RuntimeError):  # rank 0 and its store may be gone: then this rank prints
            first = bytes(self.store.compare_set("failed", "", record)).decode()
            self.store.set("ready", "")
        if first == record:
            _print_failure(error, line, self.placement, self.program)
        else:
            code = json.loads(first)["code"]
        lost = _is_lost_contact(error)
        self._leave_last(SHORT_LEAVE_TIMEOUT_S if lost else LEAVE_TIMEOUT_S)
        return code

    def failed_code(self, store: distributed.Store) -> int | None:
        """The exit code of the first failed rank, if any."""
        if not store.check(["failed"]):
            return None
        return json.loads(store.get("failed"))["code"]

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


def _check_same_run(placement: Placement, store: distributed.Store) -> None:
    """Refuses a store that another run serves on this port, before anything is written for it.

    This rank's own rank 0 then fails on the taken port, but the store of the other run is open to
    whoever connects: a failure recorded there would end that run.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps its store
    size = bytes(store.compare_set(f"size/{attempt}", "", str(placement.size))).decode()
    arrivals = store.add(f"arrived/{attempt}/{placement.rank}", 1)
    if size != str(placement.size) or arrivals > 1:
        raise ConfigError(
            f"rank {placement.rank} of {placement.size}: another run uses port {placement.port} of "
            f"{placement.address}: give another port, with deepspeed --master_port N, else with "
            "MASTER_PORT=N"
        )


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
