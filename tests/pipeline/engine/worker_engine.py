"""Runs of the engine by one or two ranks, one after another; run by test_engine.py.

    worker_engine.py OUTPUT CASES.json

CASES.json is a list of {"name", "config": a YAML file, "ranks", "overrides", "after": a case or
null}. Torch and DeepSpeed are imported once and every rank is a fork. A case trains `NUM_STEPS`
steps, in which the last rank's loss is infinite once, saves a checkpoint in OUTPUT/NAME, and trains
`NUM_MORE` steps; one that comes after another begins from that one's checkpoint. What each rank saw
is written to OUTPUT/NAME/rank-R.pt.
"""

import json
import math
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "oracles"))

from loaded import warm_up  # before torch  # isort: skip
import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401  # every engine of stage 3 imports it
from deepspeed.accelerator import get_accelerator

from pipeline.checkpoint.manager import Checkpoints
from pipeline.config.run import load_config
from pipeline.distributed.ranks import Ranks
from pipeline.distributed.world import World
from pipeline.engine import engine
from pipeline.engine.engine import Engine
from pipeline.train.preflight import CheckedRun, check_run
from pipeline.train.reload_check import NextBatchLoss
from pipeline.train.start import new_model, start
from pipeline.train.step import take_step

NUM_STEPS, NUM_MORE = 7, 1
POISONED_STEP = 3


def allow_fp16() -> None:
    """torch can do it on a CPU, slowly; DeepSpeed and we refuse it there."""
    engine.check_precision = lambda *_: None
    accelerator: Any = get_accelerator()
    accelerator.is_fp16_supported = lambda: True


def train(world: World, output: Path, case: dict[str, Any]) -> int:
    folder = output / case["name"]
    if "engine.precision=fp16" in case["overrides"]:
        allow_fp16()
    overrides = [f"run_dir={folder}", *case["overrides"]]
    if case["after"]:
        overrides.append(f"checkpoint.resume={output / case['after']}")
    checked = check_run(load_config(case["config"], overrides), world.size)
    checkpoints = Checkpoints(
        folder, checked.config.checkpoint, world, NextBatchLoss(checked, world)
    )
    trained, state = start(checked, world, checkpoints, new_model)
    seen: dict[str, Any] = {"before": parameters(trained)}
    if not case["after"]:
        seen["steps"] = steps(trained, checked, world, range(NUM_STEPS))
        seen["parameters"] = parameters(trained)
        samples = NUM_STEPS * checked.batch_shape.global_batch
        state = replace(state, step=NUM_STEPS, samples=samples, skipped_steps=1)
        checkpoints.save(trained, state)
    assert state.step == NUM_STEPS
    seen["more"] = steps(trained, checked, world, range(NUM_STEPS, NUM_STEPS + NUM_MORE))
    seen["later"] = parameters(trained)
    folder.mkdir(exist_ok=True)
    torch.save(seen, folder / f"rank-{world.rank}.pt")
    trained.close()
    return 0


def steps(
    engine: Engine, checked: CheckedRun, world: World, numbers: range
) -> list[tuple[Any, ...]]:
    """(was it applied, gradient norm, did nothing change, metrics) of each step."""
    seen = []
    before = parameters(engine)
    for step in numbers:
        with poisoned(engine, step == POISONED_STEP and world.rank == world.size - 1):
            report = take_step(engine, checked, world, step)
        after = parameters(engine)
        same = all(torch.equal(before[n], p) for n, p in after.items())
        before, update = after, report.update
        seen.append((update.applied, update.gradient_norm, same, report.metrics(world)))
    return seen


def parameters(engine: Engine) -> dict[str, torch.Tensor]:
    with engine.whole_model() as model:
        return {name: p.detach().clone() for name, p in model.state_dict().items()}


class poisoned:  # noqa: N801
    """The second (or only) loss inside is infinite, with finite gradients, if asked."""

    def __init__(self, engine: Engine, really: bool):
        self.engine, self.really, self.calls = engine, really, 0

    def __enter__(self):
        self.handle = self.engine.raw.module.model.register_forward_hook(self.hook)

    def __exit__(self, *_):
        self.handle.remove()

    def hook(self, _module, _inputs, output):
        self.calls += 1
        if self.really and self.calls == min(2, self.engine.raw.gradient_accumulation_steps()):
            token = output.losses["token"]
            output.losses["token"] = type(token)(token.sum + math.inf, token.per)


def start_rank(rank: int, size: int, port: int, body) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        with Ranks("pretrain") as ranks:
            ranks.rendezvous()
            ranks.exit_code = body(ranks.connect())
        code = ranks.exit_code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(output: Path, cases: list[dict[str, Any]]) -> int:
    for config in {case["config"] for case in cases}:
        warm_up(config)
    failed = 0
    for case in cases:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]

        def body(world: World, case: dict[str, Any] = case) -> int:
            return train(world, output, case)

        size = case["ranks"]
        ranks = [start_rank(rank, size, port, body) for rank in range(size)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        if any(codes):
            print(f"{case['name']}: exit codes {codes}", file=sys.stderr)
            failed = 1
    return failed


sys.exit(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())))
