"""All seeds of a fine-tuning on the trainer, and their results."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from torch import nn

from gpst.model.classifier import Classifier
from pipeline.checkpoint.files import step_name
from pipeline.checkpoint.manager import load_model_weights
from pipeline.config.parsing import to_plain
from pipeline.config.removed import without_removed
from pipeline.config.run import RunConfig
from pipeline.data.context_table import Split
from pipeline.data.source import ContextSource
from pipeline.distributed.world import World
from pipeline.errors import ConfigError
from pipeline.evaluate.load_model import StoredModel, build_from, find_model, fingerprint
from pipeline.evaluate.results import RESULTS, ResultsFolder
from pipeline.evaluate.results import fingerprint as files_fingerprint
from pipeline.finetune.config import SCORE, FinetuneConfig, run_config
from pipeline.finetune.examples import ExampleSource, prepare_examples
from pipeline.finetune.registry import make_task
from pipeline.finetune.task import FinetuneTask
from pipeline.finetune.text import TextReader
from pipeline.monitor.metrics_file import FILE_NAME, read_metrics
from pipeline.run_folder import CHECKPOINTS
from pipeline.train.dry_run import DryRun
from pipeline.train.preflight import Plan, check_run
from pipeline.train.run import train
from pipeline.train.trainer import Outcome as TrainingOutcome


@dataclass(frozen=True)
class FinetunePlan:
    """A fine-tuning that passed all checks, its examples prepared."""

    config: FinetuneConfig
    stored: StoredModel
    task: FinetuneTask
    record: dict[str, Any]
    """What examples.json says of the training examples."""
    plans: dict[int, Plan]
    """The trainer's plan of each seed."""

    @property
    def num_examples(self) -> int:
        return int(self.record["num_examples"])

    def describe(self) -> str:
        """What `--dry-run` prints."""
        plan = next(iter(self.plans.values()))
        first = DryRun(plan.config, plan.batches, plan.source)
        seeds = ", ".join(map(str, self.plans))
        return (
            f"task         {self.task.name}: {self.num_examples:,} examples in "
            f"{self.config.data_folder}\n"
            f"seeds        {seeds}, one run each; below that of the first\n{first.describe()}"
        )


def check_finetune(config: FinetuneConfig, world_size: int) -> FinetunePlan:
    """Checks config, model, data and disk, and prepares the examples (once, by rank 0).

    Raises:
        ConfigError, DataError, data_prep.errors.DataPrepError: what is wrong, in one line.
    """
    assert config.init is not None
    stored = find_model(config.init, "init")
    section = next(iter(config.sections.values()))
    reader = TextReader(stored.tokenizer, section.segmenter)
    task = make_task(section, reader, stored.config.max_context_tokens)
    if task.needs_trees and stored.config.kind != "gpst":
        raise ConfigError(f"init {config.init}: is no GPST, and {task.name} needs its trees")
    parts = (task.name, *task.key(), *reader.identity, stored.config.max_context_tokens)
    key = hashlib.sha256(repr(parts).encode() + _content(task).encode()).hexdigest()
    record = prepare_examples(
        config.data_folder, key, task.examples(), reader.tokenizer, task.counters
    )
    count = int(record["num_examples"])

    def open_split(_: Any, split: Split) -> ContextSource | None:
        source = ExampleSource(config.data_folder, split, task.atoms)
        return source if split == "train" or source.num_contexts else None

    plans = {
        seed: check_run(
            run_config(config, stored, count, seed, task.selects), world_size, open_split
        )
        for seed in config.seeds
    }
    return FinetunePlan(config, stored, task, record, plans)


def _content(task: FinetuneTask) -> str:
    return files_fingerprint(task.files())


def finetune(plan: FinetunePlan, world: World) -> int:
    """Trains, evaluates and writes the results of every seed that has none yet."""
    for seed in plan.config.seeds:
        if world.broadcast(_done(plan, seed)):
            continue
        outcome = _one_seed(plan, seed, world)
        if outcome.state.step < plan.plans[seed].config.train.num_steps:
            return outcome.exit_code
    if world.is_main:
        _write_summary(plan)
    world.barrier()
    return 0


def _done(plan: FinetunePlan, seed: int) -> bool:
    """Whether the seed has results of the same configuration."""
    file = plan.config.seed_folder(seed) / RESULTS
    if not file.is_file():
        return False
    return without_removed(json.loads(file.read_bytes())["options"]) == _options(plan)


def _options(plan: FinetunePlan) -> dict[str, Any]:
    """The configuration without what changes no result, as JSON gives it back."""
    plain = to_plain(plan.config)
    for name in ("seeds", "run_dir", "monitor"):
        del plain[name]
    del plain["train"]["stop_at_step"]
    return json.loads(json.dumps(plain))


def _one_seed(plan: FinetunePlan, seed: int, world: World) -> TrainingOutcome:
    task, folder = plan.task, plan.config.seed_folder(seed)
    first_print: list[str] = []

    def build(_: RunConfig) -> nn.Module:
        core = build_from(plan.stored)
        first_print.append(fingerprint(core))
        return core if task.num_labels is None else Classifier(core, task.num_labels)

    def finish(model: nn.Module, outcome: TrainingOutcome) -> None:
        config = plan.plans[seed].config
        if outcome.state.step < config.train.num_steps:
            return
        chosen = _chosen_step(folder, config) if task.selects else config.train.num_steps
        if chosen != config.train.num_steps:
            checkpoint = folder / CHECKPOINTS / step_name(chosen)
            model.load_state_dict(load_model_weights(checkpoint)[1])
        if world.is_main:
            print(f"{task.name}, seed {seed}: last evaluation, with the model of step {chosen}")
        results = task.finish(model.eval(), world, folder)
        if world.is_main:
            assert results is not None
            _write_seed(plan, seed, chosen, first_print[0], results)

    return train(plan.plans[seed], world, build, task.evaluation(), finish)


def _chosen_step(folder: Path, config: RunConfig) -> int:
    """The step of the highest score; of equal ones the first."""
    lines = [line for line in read_metrics(folder / FILE_NAME) if line.get(SCORE) is not None]
    return max(lines, key=lambda line: line[SCORE])["step"] if lines else config.train.num_steps


def _write_seed(
    plan: FinetunePlan, seed: int, step: int, model_print: str, task_results: dict[str, Any]
) -> None:
    per_epoch = plan.config.train.steps_per_epoch(plan.num_examples)
    results = {
        "task": plan.task.name,
        "seed": seed,
        "step": step,
        "epoch": step // per_epoch,
        "options": _options(plan),
        "protocol": plan.task.protocol,
        "model": {"path": plan.config.init, "fingerprint": model_print},
        "model_config": to_plain(plan.stored.config),
        "data": _data(plan),
        **task_results,
    }
    ResultsFolder(plan.config.seed_folder(seed)).write_results(results)


def _data(plan: FinetunePlan) -> dict[str, Any]:
    return {
        "files": [str(path) for path in plan.task.files()],
        "sha256": _content(plan.task),
        "examples": plan.num_examples,
        **plan.record["counters"],
    }


def _write_summary(plan: FinetunePlan) -> None:
    """results.json over the seeds, and the table."""
    runs = [
        json.loads((plan.config.seed_folder(seed) / RESULTS).read_bytes())
        for seed in plan.config.seeds
    ]
    results = {
        "task": plan.task.name,
        "seeds": list(plan.config.seeds),
        "options": _options(plan),
        "protocol": plan.task.protocol,
        "model": runs[0]["model"],
        "model_config": runs[0]["model_config"],
        "data": runs[0]["data"],
        "scores": over_seeds([run["scores"] for run in runs]),
        "runs": [{name: run[name] for name in ("seed", "step", "epoch", "scores")} for run in runs],
    }
    folder = ResultsFolder(Path(plan.config.run_dir))
    folder.write_results(results)
    print(plan.task.report(results), flush=True)
    print(f"results: {folder.path / RESULTS}", file=sys.stdout, flush=True)


def over_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Mean, (population) deviation and the values of each score."""
    summary = {}
    for name in scores[0]:
        values = [seed_scores[name] for seed_scores in scores]
        summary[name] = {"mean": fmean(values), "deviation": pstdev(values), "values": values}
    return summary
