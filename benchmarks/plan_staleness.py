"""What ordering by weights one update old (engine.plan_ahead=steps) changes, on the demo.

    python benchmarks/plan_staleness.py [--steps 200] [--every 10] [field=value ...]

Trains on one rank as the config says. At every tenth step the first micro-batch of the next step is
ordered twice with the same random numbers, by the weights before and after the update; printed are
the shares of the chart's splits (span and cut) and of the induced trees' spans that differ, and,
to compare, what another draw of the noise changes at the same weights. One JSON line a look.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch

from gpst.batch import ContextBatch
from gpst.chart.decode import decode
from gpst.chart.plan import ChartPlan
from gpst.model import GPST
from pipeline.checkpoint import Checkpoints
from pipeline.config import load_config
from pipeline.evaluate import evaluate_model
from pipeline.next_batch import NextBatch
from pipeline.plan_ahead import plan_ahead
from pipeline.prefetch import BatchReader
from pipeline.preflight import check_run
from pipeline.schedule import schedule
from pipeline.step import take_step
from pipeline.tasks.training import new_model, start
from pipeline.world import World, launch

Span = tuple[int, ...]


def splits_of(plan: ChartPlan) -> set[Span]:
    """(first token, last token, cut) of every split of the chart."""
    spans = plan.spans[plan.parent.numpy()]
    return {(i, j, k) for (i, j), k in zip(spans.tolist(), plan.cut.tolist(), strict=True)}


@torch.no_grad()
def trees_of(model: GPST, batch: ContextBatch, plan: ChartPlan) -> set[Span]:
    """Spans of two tokens or more of the induced trees."""
    chart = model._inside(plan, model.embedding(batch.tokens), 1.0, False)
    spans = plan.spans[decode(plan, chart.scores).nodes.numpy()]
    return {(i, j) for i, j in spans.tolist() if i < j}


def differing(one: set[Span], other: set[Span]) -> float:
    """Share of the one that the other has not."""
    return len(one - other) / max(1, len(one))


def compare(model: GPST, batch: ContextBatch, orders: dict[str, Any]) -> dict[str, float]:
    """How much the charts and trees of two orders differ from those of the `new` one."""
    plans = {name: model.plan_of(batch.sentence_lengths, o.wait()) for name, o in orders.items()}
    splits = {name: splits_of(plan) for name, plan in plans.items()}
    trees = {name: trees_of(model, batch, plan) for name, plan in plans.items()}
    return {
        f"{what}_{name}": differing(sets["new"], sets[name])
        for what, sets in (("splits", splits), ("spans", trees))
        for name in ("old", "redrawn")
    }


def run(world: World, arguments: argparse.Namespace) -> int:
    plan = check_run(load_config(arguments.config, arguments.overrides), world.size)
    config, batches = plan.config, plan.batches
    checkpoints = Checkpoints(config.run_dir, config.checkpoint, world, NextBatch(plan, world))
    engine, _ = start(plan, world, checkpoints, new_model)
    model: Any = engine.model
    reader = BatchReader(plan.source, config.seed, batches, world.rank)
    ahead = plan_ahead(model, config, batches, world, None)
    losses = []
    for step in range(arguments.steps):
        batch, noise = reader.read(step + 1, 0), schedule(config, step + 1).noise
        look = step % arguments.every == arguments.every - 1
        orders = {"old": model.order(batch, noise, step)} if look else {}
        report = take_step(engine, plan.source, config, batches, world, step, ahead=ahead)
        losses.append(report.metrics(world)["loss"])
        if look:
            orders["new"] = model.order(batch, noise, step)
            orders["redrawn"] = model.order(batch, noise, step + 1_000_000)
            found = compare(model, batch, orders)
            print(json.dumps({"step": step + 1, "noise": noise, **found}), flush=True)
    if ahead is not None:
        ahead.close()
    mean = sum(losses[-20:]) / len(losses[-20:])
    result = {"mode": config.engine.plan_ahead, "mean_loss_of_last_20": mean}
    if plan.held_out is not None:
        result |= evaluate_model(
            model, plan.held_out, max_contexts=64, batch_contexts=2, device=world.device
        ).metrics()
    print(json.dumps(result), flush=True)
    engine.close()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/run/demo.yaml")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("overrides", nargs="*", help="field=value")
    arguments = parser.parse_args()
    return launch(lambda _: None, lambda world: run(world, arguments))


if __name__ == "__main__":
    sys.exit(main())
