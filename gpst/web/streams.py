"""Answers that come while they are computed: a JSON value a line, until the client goes away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from threading import Event, Lock, Thread
from typing import Any, Protocol

from gpst.web.analysis import Emit

_LOOK_S = 0.1
"""How often a client is asked whether it is still there."""


class Client(Protocol):
    """Who waits for the answer."""

    async def is_disconnected(self) -> bool:
        """Whether nobody waits any more."""
        ...


class _GivenUpError(Exception):
    """Nobody waits for the answer."""


class _OutOfTimeError(Exception):
    """The answer takes longer than it may."""


async def stream(
    compute: Callable[[Emit], None], client: Client, turn: Lock, seconds: float
) -> AsyncIterator[bytes]:
    """The events of `compute`, a line each; the last one is `end` or `error`.

    Args:
        compute: runs in a thread. Its next event is its last one when the client has gone or the
            time is over.
        turn: one computation has it at a time; for the others there is an event `waiting`.
        seconds: of the computation.
    """
    loop, events = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()
    given_up = Event()

    def put(event: dict[str, Any] | None) -> None:
        if not given_up.is_set():
            loop.call_soon_threadsafe(events.put_nowait, event)

    def work() -> None:
        try:
            if not turn.acquire(blocking=False):
                put({"event": "waiting"})
                while not turn.acquire(timeout=_LOOK_S):
                    if given_up.is_set():
                        return
            try:
                _compute(compute, put, given_up, seconds)
            finally:
                turn.release()
        finally:
            put(None)

    Thread(target=work, daemon=True).start()
    try:
        while True:
            try:
                event = await asyncio.wait_for(events.get(), _LOOK_S)
            except TimeoutError:
                if await client.is_disconnected():
                    return
                continue
            if event is None:
                return
            yield json.dumps(event, ensure_ascii=False).encode() + b"\n"
    finally:
        given_up.set()


def _compute(compute: Callable[[Emit], None], put: Emit, given_up: Event, seconds: float) -> None:
    deadline = time.monotonic() + seconds

    def emit(event: dict[str, Any]) -> None:
        if given_up.is_set():
            raise _GivenUpError
        put(event)
        if time.monotonic() > deadline:
            raise _OutOfTimeError

    try:
        compute(emit)
        put({"event": "end"})
    except _GivenUpError:
        pass
    except _OutOfTimeError:
        put(
            {
                "event": "error",
                "error": f"stopped after {seconds:g} s; what is shown is as far as it came",
            }
        )
    except ValueError as error:
        put({"event": "error", "error": " ".join(str(error).split())})
