"""Ranks that meet at a real store, as threads of this process; no collectives."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch import distributed

from pipeline.distributed import meeting, watch
from pipeline.distributed.placement import Placement
from pipeline.distributed.rendezvous import Rendezvous
from pipeline.distributed.signals import StopRequest
from pipeline.distributed.watch import Watch
from pipeline.errors import ConfigError, EarlyStop


@pytest.fixture(autouse=True)
def no_agent(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


@pytest.fixture
def ranks(free_port):
    first = Placement(0, 2, 0, 2, "127.0.0.1", free_port(), "deepspeed")
    return [first, replace(first, rank=1, local_rank=1)]


@pytest.fixture
def meet(monkeypatch):
    """meet(placements) -> their meetings; all are parted at the end."""
    monkeypatch.setattr(watch, "BEAT_S", 0.02)
    opened: list[Rendezvous] = []

    def start(placements: list[Placement]) -> list[Rendezvous]:
        with ThreadPoolExecutor(len(placements)) as threads:
            meetings = threads.map(lambda p: Rendezvous.open(p, "pretrain", 20.0), placements)
        opened.extend(meetings)
        return opened[-len(placements) :]

    yield start
    for one in reversed(opened):  # rank 0 last: it serves the store
        one.part()


def test_a_rank_of_another_run_is_refused_and_records_nothing(meet, ranks):
    meetings = meet(ranks)
    where = f"another run uses port {ranks[0].port} of 127.0.0.1: give another port"
    with pytest.raises(ConfigError, match=where):
        Rendezvous.open(ranks[1], "pretrain")
    assert [one.failed_code(one.store) for one in meetings] == [None, None]


def test_a_run_of_another_size_is_refused(meet, ranks):
    meet(ranks)
    with pytest.raises(ConfigError, match="rank 5 of 8: another run uses port"):
        Rendezvous.open(replace(ranks[1], rank=5, size=8), "pretrain")


def test_torchruns_next_start_knows_nothing_of_the_one_that_failed(meet, ranks, monkeypatch):
    """Its agent keeps the store, and two agents count their restarts apart."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    agent = distributed.TCPStore("127.0.0.1", ranks[0].port, 2, True, wait_for_workers=False)
    first = meet(ranks)
    first[0].set_ready()
    watch.record_failure(first[1].store, {"rank": 1, "code": 3})
    assert [one.failed_code(one.store) for one in first] == [3, 3]
    # A rank that died in between, before rank 0 answered it.
    agent.append("names", "of a dead rank\n")
    for one in first:
        one.part()
    second = meet(ranks)
    assert [one.failed_code(one.store) for one in second] == [None, None]
    assert not second[1].store.check(["ready"])
    second[0].set_ready()
    second[1].wait_for_rank_0()


def test_who_waits_for_rank_0_says_so_and_why_and_gives_up(ranks, monkeypatch, capsys):
    monkeypatch.setattr(meeting, "FIRST_LINE_S", 0.1)
    lonely = replace(ranks[1], local_rank=0, local_size=1)
    with pytest.raises(ConfigError) as caught:
        Rendezvous.open(lonely, "pretrain", 0.5)
    place = f"rank 0 at 127.0.0.1:{lonely.port}"
    cause = "rank 0 has not started, or is on another machine: then set MASTER_ADDR"
    err = capsys.readouterr().err
    assert err.startswith(f"pretrain (rank 1): waiting for {place} (since 0 s; {cause}")
    assert 1 <= err.count("\n") <= 3
    assert re.match(rf"rank 1 of 2 waited 0\.0\d+ min for {place}: {cause}", str(caught.value))
    unknown = replace(lonely, address="no-such-host.invalid")
    with pytest.raises(ConfigError, match=r"not know the name no-such-host\.invalid: set MAST"):
        Rendezvous.open(unknown, "pretrain", 0.0)


def test_rank_0_names_the_ranks_that_do_not_come(ranks):
    alone = Rendezvous.open(replace(ranks[0], size=12, local_size=4), "pretrain", 0.2)
    with pytest.raises(ConfigError, match=r"not here: rank 1, 2, 3, 4, 5, 6, 7, 8, \.\.\., not st"):
        alone.set_ready()
    alone.part()


def test_a_signal_ends_a_wait(ranks):
    """Also when what it raises is swallowed, as in a destructor."""
    with StopRequest(early=True) as stop:
        with pytest.raises(EarlyStop):
            os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(EarlyStop) as caught:
            Rendezvous.open(ranks[1], "pretrain", 60.0, stop)
    assert caught.value.exit_code == 0
    assert str(caught.value) == "stopped by SIGUSR1 before the first step; nothing was changed"
    assert EarlyStop(signal.SIGTERM).exit_code == 143


@pytest.fixture
def ended(monkeypatch):
    """Exit codes of watches that would have ended this process."""
    codes: list[int] = []

    def end(self: Watch, code: int) -> None:
        codes.append(code)
        self._over.set()

    monkeypatch.setattr(Watch, "_end_process", end)
    monkeypatch.setattr(watch, "GRACE_S", 0.01)
    monkeypatch.setattr(watch, "SILENT_BEATS", 10)
    return codes


def until(happened) -> None:
    limit = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_silent_rank_is_named_and_ends_all(meet, ranks, ended, capsys):
    meetings = meet(ranks)
    meetings[0].set_ready()
    time.sleep(0.5)  # twice the limit: those who beat live
    assert ended == []
    meetings[1]._watch.end()  # as when its process is stopped
    until(lambda: ended == [1])
    err = capsys.readouterr().err
    assert err.startswith("pretrain: no sign of life from rank 1 on ")
    assert err.endswith("the run ends without saving: start again to resume\n")
    assert err.count("\n") == 1
    assert meetings[1].failed_code(meetings[1].store) == 1


def test_rank_0_is_named_with_its_machine(meet, ranks, ended, capsys):
    meetings = meet(ranks)
    meetings[0]._watch.end()
    until(lambda: ended == [1])
    line = f"pretrain (rank 1): no sign of life from rank 0 on {socket.gethostname()} for "
    assert capsys.readouterr().err.startswith(line)


def test_a_store_that_does_not_answer_ends_the_rank(ranks, ended, monkeypatch):
    monkeypatch.setattr(watch, "BEAT_S", 0.02)
    answer, said = threading.Event(), []

    def stopped(*_):
        answer.wait(20)
        raise RuntimeError("connection reset")

    store = SimpleNamespace(set=stopped)
    patience = SimpleNamespace(placement=ranks[1], say=said.append, stop=None)
    Watch(patience, store, {0: "node1"})  # type: ignore[arg-type]
    until(lambda: ended == [1])
    assert said[0].startswith("no sign of life from rank 0 on node1 for ")
    answer.set()


def test_a_failure_ends_a_rank_that_looks_at_no_store(meet, ranks, ended):
    meetings = meet(ranks)
    watch.record_failure(meetings[0].store, {"rank": 0, "code": 3})
    until(lambda: ended == [3, 3])
