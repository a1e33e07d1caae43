"""128 nodes of 8 ranks, simulated: threads and a store in one process; nothing is trained."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from torch import distributed

from pipeline.data.order import batch_samples
from pipeline.distributed.meeting import Arrivals, Patience, arrive, connect, join
from pipeline.distributed.placement import Placement, find_placement

NODES, PER_NODE = 128, 8
SIZE = NODES * PER_NODE


def of_slurm(rank: int) -> Placement:
    """As srun on 128 nodes tells a rank where it is."""
    return find_placement(
        {
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_NODELIST": "gpu[001-128]",
            "SLURM_STEP_NUM_TASKS": str(SIZE),
            "SLURM_STEP_TASKS_PER_NODE": f"{PER_NODE}(x{NODES})",
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": str(rank // PER_NODE),
            "SLURM_LOCALID": str(rank % PER_NODE),
        }
    )


def test_placement_of_1024_ranks():
    places = [of_slurm(rank) for rank in range(SIZE)]
    assert [place.rank for place in places] == list(range(SIZE))
    assert [place.local_rank for place in places] == [*range(PER_NODE)] * NODES
    assert {(p.size, p.local_size, p.address) for p in places} == {(SIZE, PER_NODE, "gpu001")}
    assert len({place.port for place in places}) == 1


@pytest.fixture
def many_files():
    """Two ends of a connection for each rank."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * SIZE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"ulimit -n is at most {hard}, and {wanted} files are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("size", [64, pytest.param(SIZE, marks=pytest.mark.slow)])
def test_ranks_meet(size, many_files, free_port, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    port = free_port()

    def meet(rank: int) -> tuple[distributed.Store, str, Arrivals | None]:
        place = replace(of_slurm(rank), size=size, address="127.0.0.1", port=port)
        patience = Patience(place, "pretrain", 120.0, None)
        store, way = connect(patience)
        start = join(patience, store)
        arrive(place, distributed.PrefixStore(start, store), way)
        if rank:
            return store, start, None
        arrivals = Arrivals(place, start)
        arrivals.wait_for_all(patience, store)
        return store, start, arrivals

    with ThreadPoolExecutor(size) as ranks:
        met = list(ranks.map(meet, range(size)))
    arrivals = met[0][2]
    assert arrivals is not None
    assert sorted(arrivals.hosts) == list(range(size))
    assert len({start for _, start, _ in met}) == 1


def test_1024_ranks_and_then_512_train_on_each_sample_once():
    global_batch, micro_batch = 4096, 2
    seen = []
    for size, steps in ((1024, (0, 1)), (512, (2, 3))):
        accumulation = global_batch // (size * micro_batch)
        for step in steps:
            seen += [
                batch_samples(
                    step,
                    micro_step,
                    rank=rank,
                    world_size=size,
                    micro_batch=micro_batch,
                    accumulation=accumulation,
                )
                for micro_step in range(accumulation)
                for rank in range(size)
            ]
    samples = np.sort(np.concatenate(seen))
    assert samples.tolist() == list(range(4 * global_batch))
