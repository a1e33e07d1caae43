"""The watch of a rank over the others, from their meeting to their parting.

Each rank writes a count into the store every second. Rank 0 looks at all of them, every other rank
at rank 0's: one that stays the same, or a store that does not answer, is a machine that is gone or
a process that was stopped, which would otherwise be waited for until the time limit.
Silence is counted in this rank's own seconds: a job that was suspended as a whole goes on.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import distributed

from pipeline.distributed.meeting import Patience
from pipeline.errors import EXIT_FAILURE

BEAT_S = 1.0
SILENT_BEATS = 40
"""A rank that is silent for so many beats is taken for dead."""
GRACE_S = 5.0
"""How long a rank may go on once another has failed."""
_NAMED = 8
"""Silent ranks that are named."""


class Watch:
    """Threads that end this rank when another failed or is silent.

    Args:
        patience: of this rank; its `stop` is told when the launcher has died.
        store: the ranks' store; None for a rank alone, where only the launcher is watched.
        hosts: rank -> machine, of all that have come so far, or of rank 0 in any other rank.
        each_beat: what rank 0 does besides.
    """

    def __init__(
        self,
        patience: Patience,
        store: distributed.Store | None = None,
        hosts: Mapping[int, str] | None = None,
        each_beat: Callable[[], object] = lambda: None,
    ) -> None:
        self._rank, self._say, self._stop = patience.placement.rank, patience.say, patience.stop
        self._hosts, self._each_beat = {} if hosts is None else hosts, each_beat
        self._over, self._failing = threading.Event(), False
        self._code: int | None = None
        """The exit code, once a rank has failed."""
        self._beats = 0
        self._unanswered = 0
        self._silent: dict[int, tuple[bytes, int]] = {}
        """rank -> (its last count, for how many beats)."""
        self._threads = [threading.Thread(target=self._watch, name="watch", daemon=True)]
        if store is not None:
            beat = threading.Thread(target=self._beat, args=(store,), name="beat", daemon=True)
            self._threads.append(beat)
        for thread in self._threads:
            thread.start()

    def stand_by(self) -> None:
        """This rank is ending by itself: only silence ends it before."""
        self._failing = True

    def end(self) -> None:
        """Ends the watch: the ranks part."""
        self._over.set()
        for thread in self._threads:
            thread.join(2 * BEAT_S)  # a store that does not answer holds one

    def _beat(self, store: distributed.Store) -> None:
        """Writes and reads counts; the only thread that waits for the store."""
        while not self._over.wait(BEAT_S):
            self._beats += 1
            try:
                store.set(f"beat/{self._rank}", str(self._beats))
                if self._rank == 0:
                    self._each_beat()
                    self._look_at(store, [rank for rank in sorted(self._hosts) if rank])
                else:
                    self._look_at(store, [0])
                failed = bytes(store.get("failed"))
            except RuntimeError:
                self._code = EXIT_FAILURE  # rank 0 is gone, and the store with it
                return
            self._unanswered = 0
            if failed:
                self._code = json.loads(failed)["code"]

    def _look_at(self, store: distributed.Store, ranks: list[int]) -> None:
        counts = store.multi_get([f"beat/{rank}" for rank in ranks]) if ranks else []
        for rank, count in zip(ranks, map(bytes, counts), strict=True):
            before, beats = self._silent.get(rank, (None, 0))
            self._silent[rank] = (count, beats + 1 if count == before else 0)
        silent = [rank for rank in ranks if self._silent[rank][1] >= SILENT_BEATS]
        if not silent or self._code is not None:
            return
        if record_failure(store, {"rank": silent[0], "code": EXIT_FAILURE}) is None:
            self._say(_no_sign_of_life(_named(silent, self._hosts)))

    def _watch(self) -> None:
        """Ends this process; waits for nobody."""
        launcher = launcher_parent()
        while not self._over.wait(BEAT_S):
            if launcher is not None and self._stop is not None and launcher_parent() != launcher:
                self._stop.launcher_is_gone()
            self._unanswered += len(self._threads) - 1
            if self._unanswered == SILENT_BEATS:
                self._say(_no_sign_of_life(_named([0], self._hosts)))
                self._end_process(EXIT_FAILURE)
            if self._code is not None and not self._failing and not self._over.wait(GRACE_S):
                self._end_process(self._code)

    def _end_process(self, code: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def record_failure(store: distributed.Store, failure: Mapping[str, Any]) -> dict[str, Any] | None:
    """Writes the first failure {"rank", "code"}; returns it where another was first."""
    record = json.dumps(failure)
    first = bytes(store.compare_set("failed", "", record)).decode()
    return None if first == record else json.loads(first)


def _named(ranks: list[int], hosts: Mapping[int, str]) -> str:
    words = [f"rank {rank} on {hosts.get(rank, 'another machine')}" for rank in ranks[:_NAMED]]
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return ", ".join(words) + more


def _no_sign_of_life(whose: str) -> str:
    return (
        f"no sign of life from {whose} for {SILENT_BEATS * BEAT_S:.0f} s: the machine or its "
        "network is down, or the process was stopped; the run ends without saving: start again to "
        "resume"
    )


def launcher_parent() -> tuple[int, int | None] | None:
    """What a DeepSpeed launcher that started this process was started by.

    Killing `deepspeed` leaves its launcher and the ranks running; the ranks notice by this. On
    another machine that is a shell of sshd, which may outlive its connection.

    Returns:
        (number of the process, that of the sshd which started it); None without such a launcher.
    """
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as command:
            if b"deepspeed.launcher.launch" not in command.read():
                return None
        parent = _stat(os.getppid())[1]
        above = _stat(parent)[1]
        return parent, above if _stat(above)[0].startswith("sshd") else None
    except OSError:
        return None


def _stat(number: int) -> tuple[str, int]:
    """(name, parent) of a process."""
    with open(f"/proc/{number}/stat") as stat:
        name, _, rest = stat.read().rpartition(")")
    return name.partition("(")[2], int(rest.split()[1])
