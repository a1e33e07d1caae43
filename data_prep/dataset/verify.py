"""Check a dataset directory: hashes, sizes, and what must hold for every value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from data_prep.build.input_record import NAME as INPUT_RECORD
from data_prep.build.job import RECORD_KEY
from data_prep.build.progress import Progress
from data_prep.files import sha256_of
from data_prep.format.manifest import ARRAYS, SPLITS, ShardRecord
from data_prep.format.shard import Dataset, Shard, open_dataset
from data_prep.format.stored_array import StoredArray

CHUNK = 1 << 22


def verify(path: str | Path, show_progress: bool = False) -> list[str]:
    """Everything that is wrong with a dataset, a line each with the file's name; [] when sound.

    Raises DatasetError when it cannot be opened at all.
    """
    dataset = open_dataset(path)
    with Progress(bytes_of([dataset]), show_progress, "verify") as progress:
        problems = list(_check_hashes(dataset, progress))
    if problems:
        return problems  # the values of damaged files would only repeat it
    for split in SPLITS:
        records = [s for s in dataset.manifest.shards if s.split == split]
        for record, shard in zip(records, dataset.shards(split), strict=True):
            problems += _check_values(dataset, record, shard)
    return problems


def bytes_of(datasets: Iterable[Dataset]) -> int:
    """What the shards of datasets weigh."""
    return sum(
        (dataset.path / shard.file_name(array)).stat().st_size
        for dataset in datasets
        for shard in dataset.manifest.shards
        for array in ARRAYS
    )


def _check_hashes(dataset: Dataset, progress: Progress) -> Iterator[str]:
    for shard in dataset.manifest.shards:
        for array in ARRAYS:
            path = dataset.path / shard.file_name(array)
            sound = sha256_of(path) == shard.files[array].sha256
            progress.advance(path.stat().st_size)
            if not sound:
                yield f"{path}: damaged, its sha256 is not the manifest's; build the dataset again"
    expected = dataset.manifest.arguments.get(RECORD_KEY)
    path = dataset.path / INPUT_RECORD
    if expected and not (path.is_file() and sha256_of(path) == expected):
        yield f"{path}: missing or damaged; only a rerun of the build needs it"
    expected = dataset.manifest.tokenizer.sha256
    path = dataset.tokenizer_path / "tokenizer.json"
    if expected and not path.is_file():
        yield f"{path}: missing; build the dataset again"
    elif expected and sha256_of(path) != expected:
        yield f"{path}: damaged, its sha256 is not the manifest's; build the dataset again"


def _check_values(dataset: Dataset, record: ShardRecord, shard: Shard) -> Iterator[str]:
    manifest, folder = dataset.manifest, dataset.path
    files = {array: folder / record.file_name(array) for array in ARRAYS}
    tokens, sentences, documents = shard.tokens, shard.sentence_ends, shard.document_ends
    for start in range(0, len(tokens), CHUNK):
        largest = int(tokens[start : start + CHUNK].max())
        if largest >= manifest.vocab_size:
            yield f"{files['tokens']}: id {largest} >= vocabulary size {manifest.vocab_size}"
            return
    problem = _check_ends(sentences, len(tokens), manifest.max_sentence_tokens)
    if problem:
        yield f"{files['sentence_ends']}: {problem}"
        return
    problem = _check_ends(documents, len(sentences), None)
    if problem:
        yield f"{files['document_ends']}: {problem}"
        return
    end = manifest.tokenizer.end_of_document_id
    for start in range(0, len(documents), CHUNK):
        last = documents[start : start + CHUNK].astype(np.int64) - 1
        places = sentences[last].astype(np.int64) - 1
        before = np.where(last > 0, sentences[np.maximum(last - 1, 0)].astype(np.int64), 0)
        if (tokens[places] != end).any() or (places != before).any():
            yield f"{files['document_ends']}: a document does not end with the token {end} alone"
            return


def _check_ends(ends: StoredArray, total: int, longest: int | None) -> str | None:
    """Ends increase strictly, reach the total, and are at most ``longest`` apart."""
    before = 0
    for start in range(0, len(ends), CHUNK):
        part = ends[start : start + CHUNK].astype(np.int64)
        steps = np.diff(part, prepend=before)
        if (steps <= 0).any():
            return f"ends do not increase at {start + int(np.argmax(steps <= 0))}"
        if longest is not None and int(steps.max()) > longest:
            return f"sentence {start + int(steps.argmax())} has more than {longest} tokens"
        before = int(part[-1])
    return None if before == total else f"the last end is {before}, not {total}"
