"""Answers that come while they are computed, and end when nobody waits."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from threading import Event, Lock
from typing import Any

import pytest

from gpst.web.streams import stream


class Client:
    """Waits for an answer until it has gone."""

    gone = False

    async def is_disconnected(self) -> bool:
        return self.gone


async def collected(lines: Any, most: int = 1000) -> list[Any]:
    return [json.loads(line) async for _, line in _numbered(lines, most)]


async def _numbered(lines: Any, most: int) -> Any:
    number = 0
    async for line in lines:
        yield number, line
        number += 1
        if number == most:
            await lines.aclose()
            return


def test_an_answer_that_takes_too_long_ends_and_the_next_one_begins():
    turn = Lock()

    def endless(emit: Any) -> None:
        while True:
            time.sleep(0.005)
            emit({"event": "step"})

    events = asyncio.run(collected(stream(endless, Client(), turn, 0.05)))
    assert events[0] == {"event": "step"}
    assert events[-1]["error"].startswith("stopped after 0.05 s")
    assert not turn.locked()

    def wrong(emit: Any) -> None:
        raise ValueError("no\nsuch thing")

    [event] = asyncio.run(collected(stream(wrong, Client(), turn, 9.0)))
    assert event == {"event": "error", "error": "no such thing"}


@pytest.mark.parametrize("leaves", ["closes", "is seen to be gone"])
def test_what_nobody_waits_for_is_no_longer_computed(leaves):
    turn, client, ended = Lock(), Client(), Event()
    steps = []

    def slow(emit: Any) -> None:
        try:
            while True:
                time.sleep(0.02 if leaves == "closes" else 0.3)
                steps.append(1)
                emit({"event": "step"})
        finally:
            ended.set()

    client.gone = leaves != "closes"
    events = asyncio.run(collected(stream(slow, client, turn, 1e9), most=2))
    assert len(events) == (2 if leaves == "closes" else 0)
    assert ended.wait(60)
    assert len(steps) < 50
    assert turn.acquire(timeout=60)


def test_one_waits_for_the_other():
    turn = Lock()
    turn.acquire()
    threading.Timer(0.2, turn.release).start()
    events = asyncio.run(collected(stream(lambda emit: None, Client(), turn, 1.0)))
    assert events == [{"event": "waiting"}, {"event": "end"}]
