"""All seeds of a fine-tuning on the trainer, and their results."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from gpst.config_reader import build
from gpst.model.classifier import Classifier
from pipeline.checkpoint.files import step_name
from pipeline.checkpoint.manager import load_model_weights
from pipeline.config.overrides import to_plain
from pipeline.config.removed import without_removed
from pipeline.config.run import ResolvedRun, RunConfig
from pipeline.data.context_table import Split
from pipeline.data.source import ContextSource
from pipeline.distributed.world import World
from pipeline.errors import ConfigError
from pipeline.evaluate.load_model import StoredModel, build_from, find_model, fingerprint
from pipeline.evaluate.results import RESULTS, ResultsFolder, mean_std
from pipeline.evaluate.results import fingerprint as files_fingerprint
from pipeline.finetune.config import FinetuneConfig, run_config
from pipeline.finetune.examples import ExampleSource, prepare_examples
from pipeline.finetune.registry import make_task
from pipeline.finetune.task import FinetuneTask
from pipeline.finetune.text import TextReader
from pipeline.monitor.metrics import SCORE
from pipeline.monitor.metrics_file import read_metrics
from pipeline.run_folder import CHECKPOINTS, METRICS
from pipeline.train.dry_run import DryRun
from pipeline.train.preflight import CheckedRun, check_run, share_run
from pipeline.train.trainer import RunEnd, train


@dataclass(frozen=True)
class CheckedFinetune:
    """A fine-tuning that passed all checks, its examples prepared."""

    config: FinetuneConfig
    stored: StoredModel
    task: FinetuneTask
    record: dict[str, Any]
    """What examples.json says of the training examples."""
    runs: dict[int, CheckedRun]
    """The trainer's run of each seed."""

    @property
    def num_examples(self) -> int:
        return int(self.record["num_examples"])

    def run_config(self, seed: int) -> RunConfig:
        """The trainer's configuration of a seed."""
        return run_config(self.config, self.stored, self.num_examples, seed, self.task.selects)

    def open_examples(self, _: Any, split: Split) -> ContextSource | None:
        """The examples of a split; None where none are held out."""
        source = ExampleSource(self.config.data_folder, split, self.task.atoms)
        return source if split == "train" or source.num_contexts else None

    def describe(self) -> str:
        """What `--dry-run` prints."""
        run = next(iter(self.runs.values()))
        first = DryRun(run.config, run.batch_shape, run.source)
        seeds = ", ".join(map(str, self.runs))
        return (
            f"task         {self.task.name}: {self.num_examples:,} examples in "
            f"{self.config.data_folder}\n"
            f"seeds        {seeds}, one run each; below that of the first\n{first.describe()}"
        )


def check_finetune(config: FinetuneConfig, world_size: int) -> CheckedFinetune:
    """Checks config, model, data and disk, and prepares the examples (once, by rank 0).

    Raises:
        ConfigError, DataError, data_prep.errors.DataPrepError: what is wrong, in one line.
    """
    stored, task = _model_and_task(config)
    if task.needs_trees and stored.config.kind != "gpst":
        raise ConfigError(f"init {config.init}: is no GPST, and {task.name} needs its trees")
    reader = task.reader
    parts = (task.name, *task.key(), *reader.identity, stored.config.max_context_tokens)
    key = hashlib.sha256(repr(parts).encode() + _content(task).encode()).hexdigest()
    record = prepare_examples(
        config.data_folder, key, task.examples(), reader.tokenizer, task.counters
    )
    checked = CheckedFinetune(config, stored, task, record, {})
    for seed in config.seeds:
        run = checked.run_config(seed)
        checked.runs[seed] = check_run(run, world_size, checked.open_examples)
    return checked


def share_finetune(
    config: FinetuneConfig, checked: CheckedFinetune | None, world: World
) -> CheckedFinetune:
    """Rank 0's checked fine-tuning on every rank: the others only open their data.

    Args:
        config: as this rank has read it; machines may have data and run in different folders.
        checked: on rank 0, None on the others.
    Raises:
        ConfigError: ranks have different configurations or data. DataError: a rank has no data.
    """
    shared = world.broadcast(checked and (checked.record, config.seeds))
    assert shared is not None  # rank 0 has it
    record, seeds = shared
    checked = checked or CheckedFinetune(config, *_model_and_task(config), record, {})
    runs = {}
    for seed in seeds:
        run, open_examples = checked.run_config(seed), checked.open_examples
        runs[seed] = share_run(run, checked.runs.get(seed), world, open_examples)
    return replace(checked, runs=runs)


def _model_and_task(config: FinetuneConfig) -> tuple[StoredModel, FinetuneTask]:
    assert config.init is not None
    stored = find_model(config.init, "init")
    section = next(iter(config.sections.values()))
    reader = TextReader(stored.tokenizer, section.segmenter)
    return stored, make_task(section, reader, stored.config.max_context_tokens)


def _content(task: FinetuneTask) -> str:
    return files_fingerprint(task.files())


def finetune(checked: CheckedFinetune, world: World) -> int:
    """Trains, evaluates and writes the results of every seed that has none yet."""
    for seed in checked.runs:
        if world.broadcast(_done(checked, seed)):
            continue
        end = _one_seed(checked, seed, world)
        if end.state.step < checked.runs[seed].config.train.num_steps:
            return end.exit_code
    if world.is_main:
        _write_summary(checked)
    world.barrier()
    return 0


def _done(checked: CheckedFinetune, seed: int) -> bool:
    """Whether the seed has results of the same configuration."""
    file = checked.config.seed_folder(seed) / RESULTS
    if not file.is_file():
        return False
    stored = without_removed(json.loads(file.read_bytes())["options"])
    with suppress(ConfigError):  # an older rule allowed it
        # Settings that came later get their defaults.
        stored = _options(build(FinetuneConfig, {**stored, "run_dir": checked.config.run_dir}))
    return stored == _options(checked.config)


def _options(config: FinetuneConfig) -> dict[str, Any]:
    """The configuration without what changes no result, as JSON gives it back."""
    plain = to_plain(config)
    for name in ("seeds", "run_dir", "monitor"):
        del plain[name]
    del plain["train"]["stop_at_step"]
    return json.loads(json.dumps(plain))


def _one_seed(checked: CheckedFinetune, seed: int, world: World) -> RunEnd:
    task, folder = checked.task, checked.config.seed_folder(seed)
    first_print: list[str] = []

    def build_model(_: ResolvedRun) -> nn.Module:
        core = build_from(checked.stored)
        first_print.append(fingerprint(core))
        return core if task.num_labels is None else Classifier(core, task.num_labels)

    def finish(model: nn.Module, end: RunEnd) -> None:
        config = checked.runs[seed].config
        if end.state.step < config.train.num_steps:
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
            _write_seed(checked, seed, chosen, first_print[0], results)

    return train(checked.runs[seed], world, build_model, task.evaluation(), finish)


def _chosen_step(folder: Path, config: ResolvedRun) -> int:
    """The step of the highest score; of equal ones the first."""
    lines = [line for line in read_metrics(folder / METRICS) if line.get(SCORE) is not None]
    return max(lines, key=lambda line: line[SCORE])["step"] if lines else config.train.num_steps


def _write_seed(
    checked: CheckedFinetune, seed: int, step: int, model_print: str, task_results: dict[str, Any]
) -> None:
    per_epoch = checked.config.train.steps_per_epoch(checked.num_examples)
    results = {
        "task": checked.task.name,
        "seed": seed,
        "step": step,
        "epoch": step // per_epoch,
        "options": _options(checked.config),
        "protocol": checked.task.protocol,
        "model": {"path": checked.config.init, "fingerprint": model_print},
        "model_config": to_plain(checked.stored.config),
        "data": _data(checked),
        **task_results,
    }
    ResultsFolder(checked.config.seed_folder(seed)).write_results(results)


def _data(checked: CheckedFinetune) -> dict[str, Any]:
    return {
        "files": [str(path) for path in checked.task.files()],
        "sha256": _content(checked.task),
        "examples": checked.num_examples,
        **checked.record["counters"],
    }


def _write_summary(checked: CheckedFinetune) -> None:
    """results.json over the seeds, and the table."""
    runs = [
        json.loads((checked.config.seed_folder(seed) / RESULTS).read_bytes())
        for seed in checked.config.seeds
    ]
    results = {
        "task": checked.task.name,
        "seeds": list(checked.config.seeds),
        "options": _options(checked.config),
        "protocol": checked.task.protocol,
        "model": runs[0]["model"],
        "model_config": runs[0]["model_config"],
        "data": runs[0]["data"],
        "scores": over_seeds([run["scores"] for run in runs]),
        "runs": [{name: run[name] for name in ("seed", "step", "epoch", "scores")} for run in runs],
    }
    folder = ResultsFolder(Path(checked.config.run_dir))
    folder.write_results(results)
    print(checked.task.report(results), flush=True)
    print(f"results: {folder.path / RESULTS}", file=sys.stdout, flush=True)


def over_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Mean, deviation and the values of each score."""
    return {name: mean_std([seed_scores[name] for seed_scores in scores]) for name in scores[0]}
