"""Everything that can be wrong with a run, checked by rank 0 before the ranks connect."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from data_prep.format.shard import open_dataset
from gpst.chart.phrase_edges import PhraseEdges
from pipeline.checkpoint.files import check_no_checkpoints, list_checkpoints
from pipeline.config.batch_shape import BatchShape, batch_shape, resolve_model
from pipeline.config.deepspeed import check_deepspeed_entries
from pipeline.config.run import ResolvedRun, RunConfig
from pipeline.config.sections import DataConfig
from pipeline.cost.memory import checkpoint_bytes, model_size
from pipeline.data.context_table import Split
from pipeline.data.punctuation import count_phrase_edges
from pipeline.data.source import ContextSource, open_datasets, open_source
from pipeline.distributed.world import World
from pipeline.errors import ConfigError, DataError
from pipeline.monitor.samples import FixedSentences
from pipeline.monitor.wandb import import_wandb
from pipeline.quantities import in_words
from pipeline.run_folder import CHECKPOINTS, check_run_dir
from pipeline.train.agreement import check_ranks_agree


@dataclass(frozen=True)
class CheckedRun:
    """A run that passed all checks."""

    config: ResolvedRun
    batch_shape: BatchShape
    source: ContextSource
    held_out: ContextSource | None
    sentences: FixedSentences
    phrase_edges: PhraseEdges | None = None
    """They order the charts of training; None: the parser does."""


OpenSource = Callable[[DataConfig, Split], ContextSource | None]


def check_run(
    config: RunConfig, world_size: int, open_split: OpenSource = open_source
) -> CheckedRun:
    """Checks config, batch arithmetic, data, model and disk; opens the data.

    Args:
        open_split: what a split of the data is read with; None for no held-out contexts.
    Raises:
        ConfigError, DataError, data_prep.errors.DataPrepError: what is wrong, in one line.
    """
    check_run_dir(Path(config.run_dir))
    shape = batch_shape(config, world_size)
    check_deepspeed_entries(config, shape)
    datasets = open_datasets(config.data)
    run = resolve_model(config, datasets[0].manifest)
    if config.checkpoint.resume == "never":
        check_no_checkpoints(Path(config.run_dir) / CHECKPOINTS)
    checked = _open_run(run, shape, open_split)
    if config.monitor.wandb is not None:
        import_wandb()
    _check_disk(run)
    return checked


def share_run(
    config: RunConfig,
    checked: CheckedRun | None,
    world: World,
    open_split: OpenSource = open_source,
) -> CheckedRun:
    """Rank 0's checked run on every rank: the others only open their data. All ranks call it.

    Args:
        config: as this rank has read it; machines may have data and run in different folders.
        checked: the checked run on rank 0, None on the others.
    Raises:
        ConfigError: ranks have different configurations or data. DataError: a rank has no data.
    """
    shared = world.broadcast(checked and (checked.config.model, checked.batch_shape))
    assert shared is not None  # rank 0 has it
    model, shape = shared
    if checked is None:
        checked = _open_run(config.with_model(model), shape, open_split)
    # As each rank reads it: a stale copy is another run, one that spells out a default is not.
    resolved = resolve_model(config, checked.source.datasets[0].manifest)
    check_ranks_agree(world, resolved, checked.source.fingerprint)
    return checked


def _open_run(config: ResolvedRun, shape: BatchShape, open_split: OpenSource) -> CheckedRun:
    source = open_split(config.data, "train")
    assert source is not None  # only the held-out split may be missing
    held_out = None
    if config.evaluate.every_steps is not None:
        held_out = open_split(config.data, "validation")
    monitor = config.monitor
    sentences = FixedSentences(
        monitor.sentences,
        source.datasets[0].tokenizer_path,
        monitor.prompts,
        monitor.continuation_tokens,
        config.model.max_context_tokens,
    )
    return CheckedRun(config, shape, source, held_out, sentences, _phrase_edges(config, source))


def _phrase_edges(config: ResolvedRun, source: ContextSource) -> PhraseEdges | None:
    """What structure.chart_order asks for."""
    structure = config.structure
    if structure.chart_order == "parser":
        return None
    if config.model.kind != "gpst":
        raise ConfigError("structure.chart_order: GPT-2 has no charts; leave it out")
    counted = source.datasets
    if structure.punctuation_data is not None:
        if not Path(structure.punctuation_data).is_dir():
            raise ConfigError(
                f"structure.punctuation_data: no dataset directory {structure.punctuation_data}; "
                "make it with python -m data_prep build"
            )
        counted = [open_dataset(structure.punctuation_data)]
    return count_phrase_edges(counted, source.datasets[0])


def _check_disk(config: ResolvedRun) -> None:
    run_dir = Path(config.run_dir)
    disk = next(p for p in (run_dir.absolute(), *run_dir.absolute().parents) if p.exists())
    existing = len(list_checkpoints(run_dir / CHECKPOINTS)) if run_dir.is_dir() else 0
    # One more than is kept: an old one is removed only when the new one is whole.
    wanted = max(1, config.checkpoint.keep_last + 1 - existing)
    needed = wanted * checkpoint_bytes(config, model_size(config.model).parameters)
    free = shutil.disk_usage(disk).free
    if free < needed:
        raise DataError(
            f"run_dir: {disk} has {in_words(free)} free, and {wanted} checkpoints take "
            f"{in_words(needed)}; free some, or lower checkpoint.keep_last"
        )
