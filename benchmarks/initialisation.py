"""Which initialisation learns fastest, over learning rates and seeds?

    python benchmarks/initialisation.py --data data/demo --results runs/initialisation.jsonl

Trains the demo's models (configs/run/demo.yaml, demo_gpt2.yaml) for some hundred steps, in one
process, on the same batches for every initialisation, and measures held-out perplexity on the way,
a JSON line each time. Cells of the grid that the file has to the end are left out, so that the
command goes on where it stopped. --table prints what the file has.

With --longest N sentences are cut into pieces of at most N tokens, whose charts are low and cheap;
with 1 there are no constituents at all, and the generative model is a plain language model.

An initialisation is `width_scaled`, `paper`, or one of them with some parts started as in the
other (`gpst.model.initialisation.PARTS`): `width_scaled:heads` has the paper's random heads,
`paper:heads,scaling` has ours there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from gpst.batch import ContextBatch
from gpst.model.build import build_model
from gpst.model.gpst import GPSTModel
from gpst.model.initialisation import PARTS, start_as_in_paper
from gpst.model.losses import total_loss
from pipeline.config.batch_shape import resolve_model
from pipeline.config.run import ResolvedRun, RunConfig, load_config
from pipeline.data.order import step_samples
from pipeline.data.source import ContextSource, open_datasets
from pipeline.distributed.placement import find_placement
from pipeline.distributed.signals import StopRequest
from pipeline.distributed.world import World
from pipeline.engine.optimizer import build_optimizer, set_rates
from pipeline.evaluate.held_out import evaluate_model
from pipeline.evaluate.treebank_probe import TreebankProbe, open_treebank_probe
from pipeline.train.schedule import schedule
from pipeline.train.step import micro_seed

RUNS = {"gpst": "configs/run/demo.yaml", "gpt2": "configs/run/demo_gpt2.yaml"}
CELL = ("model", "init", "rate", "seed", "steps", "contexts")
COLUMNS = ("model", "contexts", "rate", "steps", "after", "init")
CPU = torch.device("cpu")


class CutSource(ContextSource):
    """Contexts whose sentences are cut into pieces of at most `longest` tokens."""

    longest = 1

    def batch(self, contexts: ArrayLike) -> ContextBatch:
        """As of ContextSource."""
        whole, longest = super().batch(contexts), self.longest
        pieces = [
            np.r_[start:end:longest, end][1:] for start, end in pairwise([0, *whole.sentence_ends])
        ]
        return replace(
            whole,
            sentence_ends=np.concatenate(pieces),
            context_ends=np.cumsum([len(piece) for piece in pieces])[whole.context_ends - 1],
        )


def make_model(config: ResolvedRun, init: str) -> nn.Module:
    """A model of the run's sizes that starts as `init` says."""
    base, _, given = init.partition(":")
    changed = given.split(",") if given else []
    core = config.model
    if not changed:
        return build_model(replace(core, init=base))
    model = build_model(replace(core, init="width_scaled"))
    assert isinstance(model, GPSTModel), "GPT-2 has no parts"
    from_paper = [name for name in PARTS if (name in changed) == (base == "width_scaled")]
    start_as_in_paper(model, from_paper)
    if "heads" not in from_paper:
        model.autoencoding_head.start_as(model.scaling.down.weight.T)
    return model


def train(
    config: ResolvedRun,
    init: str,
    source: ContextSource,
    held_out: ContextSource,
    treebank: TreebankProbe | None,
    measure_at: Sequence[int],
) -> Iterator[dict[str, float]]:
    """Trains a model; held-out numbers after each of `measure_at` steps, F1 after the last."""
    torch.manual_seed(config.seed)
    model = make_model(config, init).train()
    optimizer = build_optimizer(model, config.optim, CPU)  # type: ignore[arg-type]
    contexts, began = config.train.global_batch_contexts, time.process_time()
    for step in range(max(measure_at)):
        scheduled = schedule(config, step)
        rates = (scheduled.learning_rate, scheduled.parser_learning_rate)
        set_rates(optimizer, config.optim, *rates)
        batch = source.batch(source.sample(config.seed, step_samples(step, contexts)))
        torch.manual_seed(micro_seed(config.seed, step, 0, 0))
        output = model(batch, noise=scheduled.noise, temperature=scheduled.temperature)
        total_loss(output.losses, batch.counts).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 in measure_at:
            measured = evaluate_model(model, held_out, max_contexts=config.evaluate.max_contexts)
            numbers = {"after": step + 1, "perplexity": round(measured.token_perplexity, 1)}
            numbers |= {name: round(value, 4) for name, value in measured.losses.items()}
            if treebank is not None and step + 1 == max(measure_at):
                scores = treebank.evaluate(model, World(find_placement({}), CPU, StopRequest()))
                numbers |= {"f1": round(scores["eval/f1"], 2)}
            yield numbers | {"seconds": round(time.process_time() - began, 1)}


def cells(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The grid's cells; a seed of all first, so that a file cut short is even."""
    for seed in arguments.seeds:
        for rate in arguments.rates:
            for init in arguments.inits:
                cut = f", pieces of {arguments.longest}" if arguments.longest else ""
                model = arguments.model + cut
                values = (model, init, rate, seed, arguments.steps, arguments.contexts)
                yield dict(zip(CELL, values, strict=True))


def read(results: Path) -> list[dict[str, Any]]:
    """The lines of a file of results, if there is one."""
    lines = results.read_text().splitlines() if results.exists() else []
    return [json.loads(line) for line in lines]


def run(arguments: argparse.Namespace) -> None:
    """Trains the cells that the file lacks."""
    until = max(arguments.measure_at)
    done = [{key: line[key] for key in CELL} for line in read(arguments.results)
            if line["after"] >= until]  # fmt: skip
    for cell in cells(arguments):
        if cell in done:
            continue
        config = configuration(arguments, cell)
        kind = CutSource if arguments.longest else ContextSource
        datasets, limit = open_datasets(config.data), config.data.context_tokens
        source, held_out = kind(datasets, "train", limit), kind(datasets, "validation", limit)
        for cut in (source, held_out):
            if isinstance(cut, CutSource):
                cut.longest = arguments.longest
        resolved = resolve_model(config, datasets[0].manifest)
        treebank = open_treebank_probe(resolved, source)
        points = train(resolved, cell["init"], source, held_out, treebank, arguments.measure_at)
        for point in points:
            with arguments.results.open("a") as file:
                file.write(json.dumps(cell | point) + "\n")


def configuration(arguments: argparse.Namespace, cell: dict[str, Any]) -> RunConfig:
    """The demo's run with a cell's rate, seed and number of steps."""
    overrides = [
        f"data.path={arguments.data}",
        f"seed={cell['seed']}",
        f"train.num_steps={cell['steps']}",
        f"train.global_batch_contexts={cell['contexts']}",
        f"optim.learning_rate={cell['rate']}",
        f"optim.parser_learning_rate={cell['rate']}",
        f"evaluate.max_contexts={arguments.max_contexts}",
    ]
    if arguments.treebank and arguments.model == "gpst":
        overrides.append(f"evaluate.treebank={arguments.treebank}")
    return load_config(RUNS[arguments.model], overrides)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A row for each model, rate, number of steps and initialisation: all seeds and their mean."""
    rows: dict[tuple, dict[int, dict[str, float]]] = defaultdict(dict)
    for line in lines:
        key = tuple(line[name] for name in COLUMNS)
        rows[key][line["seed"]] = line
    heads = [*COLUMNS, "perplexity by seed", "mean", "L_ae", "F1"]
    text = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for key in sorted(rows):
        by_seed = rows[key]
        seeds = ", ".join(f"{seed}: {by_seed[seed]['perplexity']:.0f}" for seed in sorted(by_seed))
        means = [
            _mean([line[name] for line in by_seed.values() if name in line], digits)
            for name, digits in (("perplexity", 0), ("autoencoding", 2), ("f1", 1))
        ]
        text.append("| " + " | ".join([*map(str, key), seeds, *means]) + " |")
    return "\n".join(text)


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{statistics.fmean(values):.{digits}f}" if values else ""


def main() -> None:
    """Runs the grid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", help="the demo's dataset (launch/demo.sh builds it)")
    parser.add_argument("--results", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--table", action="store_true", help="print the file's results, no run")
    parser.add_argument("--model", choices=RUNS, default="gpst")
    parser.add_argument("--inits", nargs="+", default=["width_scaled", "paper"])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.5e-3, 3e-3, 6e-3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=300, help="that the schedules span")
    parser.add_argument("--measure-at", nargs="+", type=int, default=[100, 150, 200, 300])
    parser.add_argument("--contexts", type=int, default=4, help="of a step")
    parser.add_argument("--longest", type=int, help="tokens of a sentence; see the module")
    parser.add_argument("--max-contexts", type=int, default=32, help="held-out ones")
    parser.add_argument("--treebank", help="gold trees, for F1 at the end")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(read(arguments.results)))
    elif arguments.data:
        torch.set_num_threads(1)
        run(arguments)
    else:
        parser.error("--data is needed to train")


if __name__ == "__main__":
    main()
