"""Units to shards: documents in order, rolled over at ``--shard-tokens``, hashed while written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.build.job import Job
from data_prep.build.unit_files import DOCUMENT, STREAMS, unit_file
from data_prep.files import HashingWriter, write_atomically
from data_prep.format.lock import lock_as_worker
from data_prep.format.manifest import ARRAYS, SHARD_PREFIX, SPLITS, FileRecord, ShardRecord

COPY_TOKENS = 1 << 20  # values copied at a time


@dataclass(frozen=True)
class DocumentRun:
    """Consecutive documents of one unit: half-open ranges in its three streams."""

    unit: str
    documents: tuple[int, int]
    sentences: tuple[int, int]
    tokens: tuple[int, int]


@dataclass(frozen=True)
class ShardTask:
    """A shard to be written: its document runs in order."""

    name: str
    split: str
    runs: tuple[DocumentRun, ...]

    def count(self, stream: str) -> int:
        """The number of ``tokens``, ``sentences`` or ``documents``."""
        return sum(getattr(run, stream)[1] - getattr(run, stream)[0] for run in self.runs)


@dataclass(frozen=True)
class _UnitDocuments:
    """The documents of a unit: (D + 1,) bounds in sentences and tokens, and the ranges to keep."""

    unit: str
    sentences: np.ndarray
    tokens: np.ndarray
    ranges: list[tuple[int, int]]

    def run(self, first: int, last: int) -> DocumentRun:
        """The documents [first, last)."""
        sentences = (int(self.sentences[first]), int(self.sentences[last]))
        return DocumentRun(
            self.unit, (first, last), sentences, (int(self.tokens[first]), int(self.tokens[last]))
        )


def _read_documents(job: Job, unit: str, split: str, dropped: np.ndarray | None) -> _UnitDocuments:
    table = np.fromfile(unit_file(job, unit, split, "documents"), DOCUMENT)
    zero = np.zeros(1, np.int64)
    sentences = np.concatenate([zero, np.cumsum(table["sentences"], dtype=np.int64)])
    tokens = np.concatenate([zero, np.cumsum(table["tokens"], dtype=np.int64)])
    gaps = [-1, *([] if dropped is None else dropped.tolist()), len(table)]
    ranges = [(gap + 1, end) for gap, end in pairwise(gaps) if gap + 1 < end]
    return _UnitDocuments(unit, sentences, tokens, ranges)


def assign_documents(
    job: Job,
    records: Iterable[dict[str, Any]],
    dropped: Mapping[tuple[str, str], np.ndarray] | None = None,
) -> list[ShardTask]:
    """The shards to write, with the documents of each.

    records: of all units, by index. dropped: for (unit, split), the documents to leave out, sorted.
    A document never spans shards; one that is larger than a shard gets its own.
    """
    records = list(records)
    tasks: list[ShardTask] = []
    for split in SPLITS:
        units = [r["key"] for r in records if split in r["sizes"]]
        documents = (
            _read_documents(job, unit, split, (dropped or {}).get((unit, split))) for unit in units
        )
        shards = _fill_shards(documents, job.arguments.shard_tokens)
        prefix = SHARD_PREFIX[split]
        tasks += [ShardTask(f"{prefix}-{n:05d}", split, s) for n, s in enumerate(shards)]
    return tasks


def _fill_shards(units: Iterable[_UnitDocuments], limit: int) -> list[tuple[DocumentRun, ...]]:
    """Fill shards with whole documents, at most ``limit`` tokens each."""
    shards: list[tuple[DocumentRun, ...]] = []
    shard: list[DocumentRun] = []
    num_tokens = 0
    for unit in units:
        for first, last in unit.ranges:
            while first < last:
                room = unit.tokens[first] + limit - num_tokens
                fit = int(np.searchsorted(unit.tokens[first + 1 : last + 1], room, "right"))
                if fit == 0 and shard:
                    shards.append(tuple(shard))
                    shard, num_tokens = [], 0
                    continue
                run = unit.run(first, first + max(fit, 1))
                shard.append(run)
                num_tokens += run.tokens[1] - run.tokens[0]
                first = run.documents[1]
    if shard:
        shards.append(tuple(shard))
    return shards


def _record_file(job: Job, name: str) -> Path:
    return job.work / f"{name}.done"


def write_shard(job: Job, task: ShardTask, tokens_dtype: str) -> ShardRecord:
    """Write the three files of a shard unless they are complete already."""
    done = _record_file(job, task.name)
    if done.exists():
        values = json.loads(done.read_text())
        values["files"] = {a: FileRecord(**values["files"][a]) for a in ARRAYS}
        return ShardRecord(**values)
    lock_as_worker(job.work)
    readers = {"tokens": _tokens, "sentence_ends": _sentence_ends, "document_ends": _document_ends}
    files = {}
    for array, stream in zip(ARRAYS, STREAMS, strict=True):
        dtype = tokens_dtype if array == "tokens" else "uint64"
        path = Path(job.output, f"{task.name}.{array}.npy")
        writer = HashingWriter(path, dtype, task.count(stream))
        try:
            for values in readers[array](job, task, tokens_dtype):
                writer.write(values)
            files[array] = FileRecord(*writer.close())
        except BaseException:
            writer.abort()
            raise
    record = ShardRecord(
        name=task.name,
        split=task.split,
        num_tokens=task.count("tokens"),
        num_sentences=task.count("sentences"),
        num_documents=task.count("documents"),
        files=files,
    )
    write_atomically(done, json.dumps(asdict(record)).encode())
    return record


def _slice(job: Job, task: ShardTask, run: DocumentRun, stream: str, dtype: Any) -> np.ndarray:
    """The values of a run in one stream of its unit."""
    first, last = getattr(run, stream)
    dtype = np.dtype(dtype)
    path = unit_file(job, run.unit, task.split, stream)
    return np.fromfile(path, dtype, last - first, offset=first * dtype.itemsize)


def _tokens(job: Job, task: ShardTask, dtype: str) -> Iterator[np.ndarray]:
    for run in task.runs:
        first, last = run.tokens
        for start in range(first, last, COPY_TOKENS):
            part = replace(run, tokens=(start, min(start + COPY_TOKENS, last)))
            yield _slice(job, task, part, "tokens", np.dtype(dtype).newbyteorder("<"))


def _sentence_ends(job: Job, task: ShardTask, dtype: str) -> Iterator[np.ndarray]:
    end = np.uint64(0)
    for run in task.runs:
        first, last = run.sentences
        for start in range(first, last, COPY_TOKENS):
            part = replace(run, sentences=(start, min(start + COPY_TOKENS, last)))
            lengths = _slice(job, task, part, "sentences", "<u4")
            ends = end + np.cumsum(lengths, dtype=np.uint64)
            end = ends[-1]
            yield ends


def _document_ends(job: Job, task: ShardTask, dtype: str) -> Iterator[np.ndarray]:
    end = np.uint64(0)
    for run in task.runs:
        counts = _slice(job, task, run, "documents", DOCUMENT)["sentences"]
        ends = end + np.cumsum(counts, dtype=np.uint64)
        end = ends[-1]
        yield ends
