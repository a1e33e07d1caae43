"""Pairs of ranks that train with each engine; run by test_pipe_engine.py.

    worker_engine.py RUN_YAML OUTPUT CASE ...     CASE = PRECISION-STAGE, e.g. fp32-1

Torch and DeepSpeed are imported once and every rank is a fork. A case trains `NUM_STEPS` steps, in
which rank 1's loss is infinite once, saves a checkpoint in OUTPUT/CASE and writes what each rank
saw to OUTPUT/CASE/rank-R.pt.
"""

import math
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: F401
import torch

from gpst.model import build_model
from pipeline.checkpoint import Checkpoints
from pipeline.config import load_config
from pipeline.engine import create_engine
from pipeline.preflight import check_run
from pipeline.state import first_state
from pipeline.step import take_step
from pipeline.world import World, launch

NUM_STEPS = 6
POISONED_STEP = 3


def train(world: World, run_yaml: str, output: Path, case: str) -> int:
    precision, stage = case.split("-")
    overrides = [
        f"run_dir={output / case}",
        f"engine.precision={precision}",
        f"engine.zero_stage={stage}",
    ]
    plan = check_run(load_config(run_yaml, overrides), world.size)
    config, source = plan.config, plan.source
    torch.manual_seed(config.seed)
    engine = create_engine(build_model(config.model_config), config, plan.batches, world)
    seen = []
    for step in range(NUM_STEPS):
        before = parameters(engine)
        with poisoned(engine, step == POISONED_STEP and world.rank == 1):
            report = take_step(engine, source, config, plan.batches, world, step)
        same = all(torch.equal(before[n], p) for n, p in parameters(engine).items())
        update, metrics = report.update, report.metrics(world)
        seen.append((update.applied, update.gradient_norm, same, metrics))
    checkpoints = Checkpoints(config.run_dir, config.checkpoint, world)
    samples = NUM_STEPS * plan.batches.global_batch
    state = first_state(config, source.fingerprint, world.size)
    checkpoints.save(engine, replace(state, step=NUM_STEPS, samples=samples, skipped_steps=1))
    torch.save({"steps": seen, "parameters": parameters(engine)}, output / case / rank_file(world))
    engine.close()
    return 0


def parameters(engine) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in engine.model.state_dict().items()}


def rank_file(world: World) -> str:
    return f"rank-{world.rank}.pt"


class poisoned:  # noqa: N801
    """The second loss inside is infinite (with finite gradients), if asked."""

    def __init__(self, engine, really: bool):
        self.engine, self.really, self.calls = engine, really, 0

    def __enter__(self):
        self.handle = self.engine.model.register_forward_hook(self.hook)

    def __exit__(self, *_):
        self.handle.remove()

    def hook(self, _module, _inputs, output):
        self.calls += 1
        if self.really and self.calls == 2:
            token = output.losses["token"]
            output.losses["token"] = type(token)(token.sum + math.inf, token.per)


def start(rank: int, port: int, body) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        code = launch(lambda _: None, body)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def warm_up(run_yaml: str) -> None:
    """Loads what a rank needs before the forks, compiled kernels included."""
    plan = check_run(load_config(run_yaml), 1)
    with torch.no_grad():
        build_model(plan.config.model_config)(plan.source.batch([0]))


def main(run_yaml: str, output: Path, cases: list[str]) -> int:
    warm_up(run_yaml)
    failed = 0
    for case in cases:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = [
            start(rank, port, lambda world, case=case: train(world, run_yaml, output, case))
            for rank in (0, 1)
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        if any(codes):
            print(f"{case}: exit codes {codes}", file=sys.stderr)
            failed = 1
    return failed


sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
