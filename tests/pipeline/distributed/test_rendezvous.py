"""A run that meets another one on its port leaves it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import distributed

from pipeline.distributed.placement import Placement
from pipeline.distributed.rendezvous import Rendezvous
from pipeline.errors import ConfigError


@pytest.fixture
def store(monkeypatch):
    """What both runs are connected to: the store of the first."""
    shared = distributed.HashStore()
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(shared, 0, 0)]))
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    return shared


@pytest.fixture
def ranks():
    first = Placement(
        rank=0, size=2, local_rank=0, local_size=2, address="host", port=29500, launcher="deepspeed"
    )
    return [first, replace(first, rank=1, local_rank=1)]


def test_a_rank_of_another_run_is_refused_and_records_nothing(store, ranks):
    meetings = [Rendezvous.open(rank, "pretrain") for rank in ranks]
    with pytest.raises(ConfigError, match="another run uses port 29500 of host: give another port"):
        Rendezvous.open(ranks[1], "pretrain")
    assert [meeting.failed_code(store) for meeting in meetings] == [None, None]


def test_a_run_of_another_size_is_refused(store, ranks):
    Rendezvous.open(ranks[0], "pretrain")
    with pytest.raises(ConfigError, match="rank 5 of 8: another run uses port"):
        Rendezvous.open(replace(ranks[1], rank=5, size=8), "pretrain")


def test_torchruns_next_attempt_may_come_again(store, ranks, monkeypatch):
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        for rank in ranks:
            Rendezvous.open(rank, "pretrain")
