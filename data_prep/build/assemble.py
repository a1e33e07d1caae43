"""Units to shards: documents in order, rolled over at ``--shard-tokens``, hashed while written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.build.job import Job
from data_prep.build.unit import DOCUMENT, STREAMS, unit_file
from data_prep.files import HashingWriter, write_atomically
from data_prep.format.lock import hold_as_worker
from data_prep.format.manifest import ARRAYS, SHARD_PREFIX, SPLITS, FileRecord, ShardRecord

COPY_TOKENS = 1 << 20  # values copied at a time


@dataclass(frozen=True)
class Segment:
    """A run of documents of one unit: half-open ranges in its three streams."""

    unit: str
    documents: tuple[int, int]
    sentences: tuple[int, int]
    tokens: tuple[int, int]


@dataclass(frozen=True)
class ShardTask:
    """A shard to be written: its segments in order, and its sizes."""

    name: str
    split: str
    segments: tuple[Segment, ...]

    def count(self, what: str) -> int:
        """Elements of ``tokens``, ``sentences`` or ``documents`` in all."""
        return sum(getattr(s, what)[1] - getattr(s, what)[0] for s in self.segments)


@dataclass(frozen=True)
class _Documents:
    """The documents of a unit: (D + 1,) bounds in sentences and tokens, and the runs kept."""

    unit: str
    sentences: np.ndarray
    tokens: np.ndarray
    runs: list[tuple[int, int]]

    def segment(self, first: int, last: int) -> Segment:
        """The segment of documents [first, last)."""
        sentences = (int(self.sentences[first]), int(self.sentences[last]))
        return Segment(
            self.unit, (first, last), sentences, (int(self.tokens[first]), int(self.tokens[last]))
        )


def _read_documents(job: Job, unit: str, split: str, dropped: np.ndarray | None) -> _Documents:
    table = np.fromfile(unit_file(job, unit, split, "documents"), DOCUMENT)
    zero = np.zeros(1, np.int64)
    sentences = np.concatenate([zero, np.cumsum(table["sentences"], dtype=np.int64)])
    tokens = np.concatenate([zero, np.cumsum(table["tokens"], dtype=np.int64)])
    gaps = [] if dropped is None else dropped.tolist()
    starts, ends = [0, *(g + 1 for g in gaps)], [*gaps, len(table)]
    runs = [(a, b) for a, b in zip(starts, ends, strict=True) if a < b]
    return _Documents(unit, sentences, tokens, runs)


def plan_shards(
    job: Job,
    records: Iterable[dict[str, Any]],
    dropped: Mapping[tuple[str, str], np.ndarray] | None = None,
) -> list[ShardTask]:
    """Which documents go to which shard.

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
        shards = _roll(documents, job.arguments.shard_tokens)
        prefix = SHARD_PREFIX[split]
        tasks += [ShardTask(f"{prefix}-{n:05d}", split, s) for n, s in enumerate(shards)]
    return tasks


def _roll(units: Iterable[_Documents], limit: int) -> list[tuple[Segment, ...]]:
    """Fill shards with whole documents, at most ``limit`` tokens each."""
    shards: list[tuple[Segment, ...]] = []
    held: list[Segment] = []
    used = 0
    for unit in units:
        for first, last in unit.runs:
            while first < last:
                room = unit.tokens[first] + limit - used
                fit = int(np.searchsorted(unit.tokens[first + 1 : last + 1], room, "right"))
                if fit == 0 and held:
                    shards.append(tuple(held))
                    held, used = [], 0
                    continue
                segment = unit.segment(first, first + max(fit, 1))
                held.append(segment)
                used += segment.tokens[1] - segment.tokens[0]
                first = segment.documents[1]
    if held:
        shards.append(tuple(held))
    return shards


def _record_file(job: Job, name: str) -> Path:
    return job.work / f"{name}.done"


def write_shard(job: Job, task: ShardTask, tokens_dtype: str) -> ShardRecord:
    """Write the three files of a shard, or find them done."""
    done = _record_file(job, task.name)
    if done.exists():
        values = json.loads(done.read_text())
        values["files"] = {a: FileRecord(**values["files"][a]) for a in ARRAYS}
        return ShardRecord(**values)
    hold_as_worker(job.work)
    copied = {"tokens": _tokens, "sentence_ends": _sentence_ends, "document_ends": _document_ends}
    files = {}
    for array, stream in zip(ARRAYS, STREAMS, strict=True):
        dtype = tokens_dtype if array == "tokens" else "uint64"
        path = Path(job.output, f"{task.name}.{array}.npy")
        writer = HashingWriter(path, dtype, task.count(stream))
        try:
            for values in copied[array](job, task, tokens_dtype):
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


def _slice(job: Job, task: ShardTask, segment: Segment, stream: str, dtype: Any) -> np.ndarray:
    """The values of a segment in one stream of its unit."""
    first, last = getattr(segment, stream)
    dtype = np.dtype(dtype)
    path = unit_file(job, segment.unit, task.split, stream)
    return np.fromfile(path, dtype, last - first, offset=first * dtype.itemsize)


def _tokens(job: Job, task: ShardTask, dtype: str) -> Iterator[np.ndarray]:
    for segment in task.segments:
        first, last = segment.tokens
        for start in range(first, last, COPY_TOKENS):
            part = replace(segment, tokens=(start, min(start + COPY_TOKENS, last)))
            yield _slice(job, task, part, "tokens", np.dtype(dtype).newbyteorder("<"))


def _sentence_ends(job: Job, task: ShardTask, dtype: str) -> Iterator[np.ndarray]:
    end = np.uint64(0)
    for segment in task.segments:
        first, last = segment.sentences
        for start in range(first, last, COPY_TOKENS):
            part = replace(segment, sentences=(start, min(start + COPY_TOKENS, last)))
            lengths = _slice(job, task, part, "sentences", "<u4")
            ends = end + np.cumsum(lengths, dtype=np.uint64)
            end = ends[-1]
            yield ends


def _document_ends(job: Job, task: ShardTask, dtype: str) -> Iterator[np.ndarray]:
    end = np.uint64(0)
    for segment in task.segments:
        counts = _slice(job, task, segment, "documents", DOCUMENT)["sentences"]
        ends = end + np.cumsum(counts, dtype=np.uint64)
        end = ends[-1]
        yield ends
