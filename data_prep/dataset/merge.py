"""Join datasets made with one tokenizer: their shards, renumbered, under a new manifest."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_prep.build.progress import Progress
from data_prep.dataset.verify import bytes_of
from data_prep.errors import DatasetError, UsageError, unwritable
from data_prep.files import sha256_of, sync_directory, write_atomically
from data_prep.format.card import write_card
from data_prep.format.manifest import (
    ARRAYS,
    RECORDS,
    SHARD_PREFIX,
    SPLITS,
    Manifest,
    ShardRecord,
    write_manifest,
)
from data_prep.format.shard import TOKENIZER_DIRECTORY, Dataset, open_dataset


def merge(paths: Sequence[str | Path], output: str | Path, show_progress: bool = False) -> Dataset:
    """Copy the shards of datasets, in order, into a new dataset directory.

    Training and held-out documents stay what they are. Raises UsageError when the datasets do not
    fit together or the output is not empty, DatasetError when one is damaged.
    """
    datasets = [open_dataset(path) for path in paths]
    output = Path(output)
    _check_fit(datasets)
    _make_empty(output)
    try:
        _write(datasets, output, show_progress)
    except BaseException as error:
        for path in output.iterdir():  # it was empty: what is there is ours
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            raise unwritable(output, error) from None
        raise
    return open_dataset(output)


def _write(datasets: Sequence[Dataset], output: Path, show_progress: bool) -> None:
    with Progress(bytes_of(datasets), show_progress, "merge") as progress:
        shards = list(_copy_shards(datasets, output, progress))
    first = datasets[0]
    if first.tokenizer_path.is_dir():
        (output / TOKENIZER_DIRECTORY).mkdir()
        for path in first.tokenizer_path.iterdir():
            shutil.copyfile(path, output / TOKENIZER_DIRECTORY / path.name)
    for name in (f"{kind}.jsonl" for kind in RECORDS):
        files = [d.path / name for d in datasets if (d.path / name).exists()]
        write_atomically(output / name, b"".join(path.read_bytes() for path in files))
    counters: Counter[str] = Counter()
    for dataset in datasets:
        counters.update(dataset.manifest.counters)
    manifest = replace(
        first.manifest,
        shards=tuple(shards),
        counters=dict(sorted(counters.items())),
        max_sentence_tokens=_longest(datasets),
        segmenter=_common(dict(d.manifest.segmenter) for d in datasets),
        source={"name": "merge", "summary": ", ".join(_source(d) for d in datasets)},
        arguments=_arguments(datasets),
    )
    write_card(output, manifest)
    sync_directory(output)
    write_manifest(output, manifest)


def _check_fit(datasets: Sequence[Dataset]) -> None:
    if len(datasets) < 2:
        raise UsageError("merge needs at least two datasets")
    first = datasets[0]
    for other in datasets[1:]:
        for name in ("vocab_size", "tokens_dtype"):
            if getattr(first.manifest, name) != getattr(other.manifest, name):
                raise UsageError(f"{other.path} and {first.path} differ in {name}: not merged")
        for name in ("sha256", "bos_id", "end_of_document_id"):
            if getattr(first.manifest.tokenizer, name) != getattr(other.manifest.tokenizer, name):
                raise UsageError(
                    f"{other.path} and {first.path} were made with different tokenizers ({name});"
                    " build one of them again"
                )
    known = [d for d in datasets if _fraction(d) is not None]
    for other in known[1:]:
        if _fraction(other) != _fraction(known[0]):  # a text would be in train and in validation
            raise UsageError(
                f"{other.path} has --validation-fraction {_fraction(other)},"
                f" {known[0].path} has {_fraction(known[0])}: not merged;"
                " build them with the same fraction"
            )


def _fraction(dataset: Dataset) -> float | None:
    """Its --validation-fraction; None when it was not made by build."""
    return dataset.manifest.arguments.get("validation_fraction")


def _arguments(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """What the merged dataset says of itself: the fraction only when all of them have it."""
    arguments: dict[str, Any] = {"merged": [d.manifest.fingerprint for d in datasets]}
    fractions = {_fraction(d) for d in datasets}
    if len(fractions) == 1 and None not in fractions:
        arguments["validation_fraction"] = fractions.pop()
    return arguments


def _make_empty(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output {output} cannot be made: {error.strerror}") from None
    if any(output.iterdir()):
        raise UsageError(f"output {output} is not empty; choose another output, or remove it")


def _copy_shards(
    datasets: Sequence[Dataset], output: Path, progress: Progress
) -> Iterable[ShardRecord]:
    for split in SPLITS:
        number = 0
        for dataset in datasets:
            for record in (s for s in dataset.manifest.shards if s.split == split):
                copied = replace(record, name=f"{SHARD_PREFIX[split]}-{number:05d}")
                for array in ARRAYS:
                    _copy(dataset, record, copied, array, output)
                    progress.advance((output / copied.file_name(array)).stat().st_size)
                yield copied
                number += 1


def _copy(
    dataset: Dataset, record: ShardRecord, copied: ShardRecord, array: str, output: Path
) -> None:
    source, target = dataset.path / record.file_name(array), output / copied.file_name(array)
    shutil.copyfile(source, target)
    if sha256_of(target) != record.files[array].sha256:
        raise DatasetError(f"{source}: damaged, its sha256 is not the manifest's; build it again")


def _longest(datasets: Sequence[Dataset]) -> int | None:
    limits = [d.manifest.max_sentence_tokens for d in datasets]
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None


def _common(values: Iterable[dict]) -> dict:
    distinct = {json.dumps(value, sort_keys=True): value for value in values}
    return next(iter(distinct.values())) if len(distinct) == 1 else {"name": "several"}


def _source(dataset: Dataset) -> str:
    manifest: Manifest = dataset.manifest
    return f"{dataset.path.name} ({manifest.source.get('name')})"
