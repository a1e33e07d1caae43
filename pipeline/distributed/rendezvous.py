"""Where ranks meet before they have collectives, and where the first failure is written down.

The first rank that fails writes its exit code into the common store, so that exactly one line is
printed and every rank ends with the same code, also when the others only see a broken connection.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from torch import distributed

from pipeline.distributed.placement import Placement
from pipeline.errors import EXIT_FAILURE, ConfigError, TrainingError, explain

PREPARE_TIMEOUT_S = 3600.0
"""Longest preparation of rank 0 (it may compute a table of contexts)."""
FAREWELL_S = 10.0
"""How long a failed rank 0 keeps the store open for others, which may still be starting."""
SHORT_FAREWELL_S = 2.0
"""The same when it failed because another rank is dead."""


class Meeting:
    """The store of the ranks: readiness, and the first failure."""

    def __init__(self, placement: Placement, store: distributed.Store, program: str) -> None:
        self.placement, self.store, self.program = placement, store, program

    @classmethod
    def open(cls, placement: Placement, program: str = "pretrain") -> "Meeting":
        if placement.size == 1:
            return cls(placement, distributed.HashStore(), program)
        try:
            # Also under torchrun, whose agent already serves the store on this port.
            limit = timedelta(seconds=PREPARE_TIMEOUT_S)
            store, _, _ = next(iter(distributed.rendezvous("env://", timeout=limit)))
        except RuntimeError as error:
            where = f"{placement.address}:{placement.port}"
            raise ConfigError(
                f"rank {placement.rank} of {placement.size} cannot meet the others at {where}: "
                f"{str(error).splitlines()[0]} (a port that is taken: give another one, with "
                "deepspeed --master_port N, else with MASTER_PORT=N)"
            ) from None
        return cls(placement, store, program)

    def prepare(self, prepare: Callable[[Placement], int | None]) -> int | None:
        """Rank 0 prepares, the others wait; its answer (an exit code to stop with) on all."""
        if self.placement.rank == 0:
            code = prepare(self.placement)
            self.store.set("prepared", json.dumps(code))
            if code is not None:
                self._say_farewell()
            return code
        try:
            self.store.wait(["prepared"], timedelta(seconds=PREPARE_TIMEOUT_S))
            code = json.loads(self.store.get("prepared"))
        except RuntimeError:
            raise TrainingError("rank 0 ended before the ranks met") from None
        if code is not None:
            self._say_farewell()
        return code

    def fail(self, error: BaseException) -> int:
        """Ends this rank for `error`, or quietly for the failure of another one before it."""
        line, code = explain(error) or (_describe(error), EXIT_FAILURE)
        mine = json.dumps({"rank": self.placement.rank, "code": code})
        first = mine
        with suppress(RuntimeError):  # rank 0 and its store may be gone: then this rank speaks
            first = bytes(self.store.compare_set("failed", "", mine)).decode()
            self.store.compare_set("prepared", "", json.dumps(code))
        if first == mine:
            _print_failure(error, line, self.placement, self.program)
        else:
            code = json.loads(first)["code"]
        self._say_farewell(SHORT_FAREWELL_S if _is_lost_contact(error) else FAREWELL_S)
        return code

    def failed_code(self, store: distributed.Store) -> int | None:
        """The exit code of the first failed rank, if any."""
        if not store.check(["failed"]):
            return None
        return json.loads(store.get("failed"))["code"]

    def _say_farewell(self, patience_s: float = FAREWELL_S) -> None:
        """The store dies with rank 0, which therefore leaves last."""
        if self.placement.size == 1:
            return
        with suppress(RuntimeError):
            left = self.store.add("left", 1)
            deadline = time.monotonic() + patience_s
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
