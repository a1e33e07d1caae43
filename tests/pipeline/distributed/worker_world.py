"""Pairs of ranks that behave or fail as told; run by test_world.py.

Torch is imported once and every rank is a fork, which keeps the test short. Prints, as JSON, each
mode's [exit code, stderr, seconds] of rank 0 and of rank 1.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch

from pipeline.distributed import watch
from pipeline.distributed.ranks import Ranks
from pipeline.distributed.world import World
from pipeline.errors import ConfigError, DataError

MODES = ("well", "prepare", "data", "bug", "killed", "busy")
watch.GRACE_S = 1.0


def run(mode: str) -> int:
    with Ranks("pretrain") as ranks:
        ranks.rendezvous()
        if ranks.is_main:
            time.sleep(0.5)  # the others wait for rank 0
            if mode == "prepare":
                raise ConfigError("seed: -1 is not allowed")
        ranks.exit_code = body(mode, ranks.connect())
    return ranks.exit_code


def body(mode: str, world: World) -> int:
    assert int(world.sum(torch.tensor([world.rank + 1]))) == 3
    assert world.wishes() == (False, False)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGHUP)  # the terminal closed
    assert world.wishes() == (False, True)
    assert world.wishes() == (False, False)
    assert world.broadcast(f"from {world.rank}") == "from 0"
    assert world.gather(world.rank * 10) == [0, 10]
    world.barrier()
    if world.rank == 1:
        fail(mode)
    if mode == "busy":
        time.sleep(60)  # outside of any collective: nothing would tell this rank
    world.barrier()
    return 5


def fail(mode: str) -> None:
    if mode in ("data", "busy"):
        raise DataError("shard-00000 is damaged")
    if mode == "bug":
        raise KeyError("a bug")
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(mode: str, rank: int, port: int, stderr: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        code = run(mode)
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        began, children = time.monotonic(), {}
        for mode in MODES:
            port = free_port()
            for rank in (0, 1):
                stderr = Path(folder, f"{mode}-{rank}")
                children[start(mode, rank, port, stderr)] = (mode, rank, stderr)
        found: dict[str, list[list[object]]] = {mode: [[], []] for mode in MODES}
        while children:
            child, status = os.wait()
            mode, rank, stderr = children.pop(child)
            seconds = time.monotonic() - began
            code = os.waitstatus_to_exitcode(status)
            found[mode][rank] = [code, stderr.read_text(), seconds]
    print(json.dumps(found))


main()
