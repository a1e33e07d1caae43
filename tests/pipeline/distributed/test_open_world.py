"""What a rank takes of its machine before it meets the others: cores, GPU, network, time limits."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from pipeline.distributed import world
from pipeline.distributed.placement import SLURM, Placement
from pipeline.distributed.rendezvous import Rendezvous
from pipeline.distributed.signals import StopRequest
from pipeline.distributed.world import cores_of_a_rank, open_world
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("own", "parents", "environ", "expected"),
    [
        (64, 64, {}, 8),  # of deepspeed or torchrun: all cores are everybody's
        (8, 64, {}, 8),  # mpirun has bound each rank to its own
        (16, 64, {}, 8),  # ... or two ranks to a socket
        (1, 64, {}, 1),
        (4, 4, {}, 1),
        (8, 64, {"SLURM_CPUS_ON_NODE": "64"}, 8),  # bound by Slurm: once divided, not twice
        (32, 128, {"SLURM_CPUS_ON_NODE": "32"}, 4),  # a job with a part of the node, not bound
    ],
)
def test_cores_are_divided_once(monkeypatch, own, parents, environ, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: range(parents if who else own))
    launcher = SLURM if environ else "RANK/WORLD_SIZE"
    placement = Placement(0, 8, 0, 8, "127.0.0.1", 1, launcher)
    assert cores_of_a_rank(placement, environ) == expected


@pytest.fixture
def gpus(monkeypatch):
    """gpus(visible, local rank, others' rank on the GPU) -> (device, LOCAL_RANK)."""
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    gpu = SimpleNamespace(uuid="a-b")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: gpu)

    def take(visible: int, local_rank: int, store: distributed.Store | None = None):
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        placement = Placement(local_rank, 4, local_rank, 4, "127.0.0.1", 1, SLURM)
        store = store or distributed.HashStore()
        device = world._device(SimpleNamespace(placement=placement, store=store))  # type: ignore[arg-type]
        assert current.pop() == device.index  # kernels go to the current one
        return str(device), os.environ["LOCAL_RANK"]

    return take


def test_a_rank_takes_its_gpu_or_the_only_one_it_sees(gpus):
    assert gpus(4, 3) == ("cuda:3", "3")
    assert gpus(1, 3) == ("cuda:0", "0")  # srun --gpus-per-task=1
    with pytest.raises(ConfigError, match="local rank 3 has no GPU of its own: this machine shows"):
        gpus(2, 3)
    shared = distributed.HashStore()
    gpus(1, 0, shared)
    with pytest.raises(ConfigError, match="ranks 0 and 1 have the same GPU of "):
        gpus(1, 1, shared)


def test_every_process_group_has_the_limit_of_the_run(monkeypatch):
    """DeepSpeed makes groups without one: torch's 30 minutes would hold."""
    c10d = distributed.distributed_c10d
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(c10d, name, getattr(c10d, name))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(world, "_choose_interface", lambda name: None)
    placement = Placement(0, 1, 0, 1, "127.0.0.1", 1, "no launcher")
    meeting = Rendezvous.open(placement, "pretrain")
    with open_world(meeting, StopRequest(early=True), 2.5):
        later = distributed.new_group([0])
        for group in (distributed.group.WORLD, later):
            backend = group._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
            assert backend.options._timeout == timedelta(minutes=2.5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, None),  # the older name, as it was set
    ],
)
def test_memory_of_a_gpu_does_not_fragment(monkeypatch, given, expected):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # set back afterwards
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    try:
        world.settle_environment(Placement(0, 1, 0, 1, "127.0.0.1", 1, SLURM))
        assert os.environ.get("PYTORCH_ALLOC_CONF") == expected
    finally:
        torch.set_num_threads(threads)
        if "PYTORCH_ALLOC_CONF" not in given:
            os.environ.pop("PYTORCH_ALLOC_CONF", None)
