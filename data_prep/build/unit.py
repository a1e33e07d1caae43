"""One unit of work: read, clean, split, segment, encode, and write under the work folder.

A unit's files get their names only when they are complete, its ``.done`` record last. An
interrupted unit is done again, with the same result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from data_prep.build.encode import Encoder, TokenBatch
from data_prep.build.heap import trim_heap
from data_prep.build.job import Job
from data_prep.errors import SourceError
from data_prep.files import write_atomically
from data_prep.format.lock import lock_as_worker
from data_prep.format.manifest import SPLITS
from data_prep.segment.segmenters import get_segmenter
from data_prep.sources.base import Part, Source, Unit, read_parts
from data_prep.sources.long_documents import cut_long_documents
from data_prep.sources.options import SourceOptions
from data_prep.sources.registry import get_source
from data_prep.text.batch import RawBatch, Recorder, merge_small
from data_prep.text.decode import clean_documents
from data_prep.text.encodings import FEW_BAD, MOST_BAD
from data_prep.text.normalise import CleanBatch
from data_prep.tokenizer.engines import get_engine
from data_prep.tokenizer.load import LoadedTokenizer, load_tokenizer
from data_prep.tokenizer.reference import Engine
from gpst.jit.compiled import compiled

# a document of a unit: the hash of its text and its size
DOCUMENT = np.dtype([("hash", "<u8", (2,)), ("sentences", "<u8"), ("tokens", "<u8")])
STREAMS = ("tokens", "sentences", "documents")
# where a document of a deduplicated build came from: its file, by number in the unit, and place
PLACES, PLACE = "places", np.dtype([("file", "<u4"), ("place", "<i8")])


def unit_file(job: Job, key: str, split: str, stream: str) -> Path:
    """The file of one stream of a unit: raw little-endian values, no header."""
    return job.work / "units" / f"{key}.{split}.{stream}"


def done_file(job: Job, key: str) -> Path:
    """The record of a finished unit."""
    return job.work / "units" / f"{key}.done"


def quarantine_file(job: Job, key: str) -> Path:
    """The dropped records of a unit, a JSON object a line; absent when there are none."""
    return job.work / "units" / f"{key}.quarantine"


def names_file(job: Job, key: str) -> Path:
    """The file names that PLACES refers to by number, a JSON list; with --deduplicate only."""
    return job.work / "units" / f"{key}.names"


_SHARED: dict[Job, tuple[LoadedTokenizer, Engine]] = {}


def share_loaded(job: Job, loaded: LoadedTokenizer, engine: Engine) -> None:
    """Let units that run in this process use a tokenizer and engine that are loaded already."""
    _SHARED.clear()
    _SHARED[job] = loaded, engine


@lru_cache(maxsize=1)
def _encoder(job: Job) -> Encoder:
    """Created once in a worker process."""
    if job in _SHARED:
        loaded, engine = _SHARED.pop(job)
    else:
        loaded = load_tokenizer(job.tokenizer, end_of_document=job.end_of_document)
        engine = get_engine(job.engine, loaded)
    segmenter = get_segmenter(job.arguments.segmenter, job.arguments.language)
    encoder = Encoder(loaded, engine, segmenter, job.arguments.max_sentence_tokens)
    trim_heap()
    return encoder


def run_unit(job: Job, unit: Unit) -> dict[str, Any]:
    """Run a unit unless it is done. Returns its record: counters and sizes by split."""
    done = done_file(job, unit.key)
    if done.exists():
        return json.loads(done.read_text(encoding="utf-8"))
    lock_as_worker(job.work)
    encoder = _encoder(job)
    recorder = Recorder()
    for record in unit.dropped:
        recorder.drop(*record)
    writer = _UnitWriter(job, unit.key, encoder.dtype)
    forced_before, failed_before = encoder.num_forced, _num_failed(encoder)
    try:
        for batch in merge_small(_batches(job, unit, recorder)):
            _run_batch(job, encoder, batch, recorder, writer)
        sizes = writer.close()
    except BaseException:
        writer.abort()
        raise
    recorder.count("long_words_cut", encoder.num_forced - forced_before)
    recorder.count("paragraphs_not_segmented", _num_failed(encoder) - failed_before)
    record = {
        "key": unit.key,
        "counters": dict(sorted(recorder.counters.items())),
        "sizes": sizes,
        "input_bytes": unit.weight,
    }
    if recorder.quarantine:
        lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in recorder.quarantine]
        write_atomically(quarantine_file(job, unit.key), "".join(lines).encode(errors="replace"))
    write_atomically(done, json.dumps(record).encode())
    if unit.piece is not None:
        for part in unit.parts:  # temporary files
            Path(part.path).unlink(missing_ok=True)
    return record


def _num_failed(encoder: Encoder) -> int:
    return getattr(encoder.segmenter, "num_failed", 0)


def _batches(job: Job, unit: Unit, recorder: Recorder) -> Iterator[RawBatch]:
    """The documents of a unit, long ones cut, under the names of the input files."""
    source, options = get_source(job.arguments.source), job.arguments.options
    read = _read_piece if unit.piece is not None else read_parts
    for batch in read(source, unit.parts, options, recorder):
        yield from cut_long_documents(batch, recorder)


def _read_piece(
    source: Source, parts: Iterable[Part], options: SourceOptions, recorder: Recorder
) -> Iterator[RawBatch]:
    """The documents of temporary files, which are pieces of a stream."""
    for part in parts:
        if part.decoded:
            recorder.count(f"files_decoded/{part.decoded}")
        renamed = recorder.renamed(part.path, part.origin, part.base)
        for batch in source.read(part, options, renamed):
            yield replace(batch, file=part.origin, places=batch.places + part.base)


def _run_batch(
    job: Job, encoder: Encoder, raw: RawBatch, recorder: Recorder, writer: _UnitWriter
) -> None:
    raw, clean = clean_documents(raw, job.arguments.options.encoding, recorder)
    keep = _keep(job, raw, clean, recorder)
    if not keep.any():
        return
    data, ends = clean.data, clean.ends
    if not keep.all():
        data, ends = _select(data, ends, keep)
    hashes = _hash_documents(data, ends)
    held_out = _is_held_out(hashes, job.arguments.validation_fraction)
    encoded = encoder.encode(data, ends)
    places = writer.places_of(raw, np.flatnonzero(keep)) if job.arguments.deduplicate else None
    empty = np.ones(len(ends), np.bool_)
    for split, chosen in zip(SPLITS, (~held_out, held_out), strict=True):
        if chosen.any():
            tokens = encoder.layout(encoded, chosen)
            empty &= tokens.document_sentences == 0
            writer.write(split, tokens, hashes, places)
            recorder.count("sentences_cut_too_long", tokens.num_cut)
            recorder.count("sentences_cut_inside_a_word", tokens.num_cut_words)
    for number in np.flatnonzero(keep)[empty].tolist():
        recorder.drop("document_without_tokens", *raw.where(number))
    recorder.count("documents", len(ends) - int(empty.sum()))
    recorder.count("text_bytes", len(data))


def _keep(job: Job, raw: RawBatch, clean: CleanBatch, recorder: Recorder) -> np.ndarray:
    """(D,) bool: the documents to keep; the others are recorded."""
    sizes = np.diff(clean.ends, prepend=0)
    keep = sizes > 0
    for number in np.flatnonzero(~keep).tolist():
        recorder.drop("empty_document", *raw.where(number))
    recorder.count("control_characters_dropped", clean.num_controls)
    bad = np.flatnonzero((clean.num_bad > 0) & keep)
    if len(bad) and job.arguments.on_bad_utf8 == "fail":
        file, place = raw.where(int(bad[0]))
        raise SourceError(
            f"{file}, record at {place}: not valid UTF-8; or: --on-bad-utf8 replace | skip"
        )
    most = np.maximum(FEW_BAD, MOST_BAD * (raw.ends - raw.starts))
    for number in bad.tolist():
        if job.arguments.on_bad_utf8 == "skip" or clean.num_bad[number] > most[number]:
            keep[number] = False
            cure = "" if job.arguments.source in ("parquet", "hf") else "; or name its --encoding"
            detail = f"{clean.num_bad[number]} places that do not fit{cure}"
            recorder.drop("bad_utf8", *raw.where(number), detail)
        else:
            recorder.count("bad_utf8_replaced", int(clean.num_bad[number]))
            recorder.count("documents_with_bad_utf8")
    return keep


@compiled
def _copy_documents(data, ends, keep, out, out_ends):
    start = at = kept = 0
    for d in range(len(ends)):
        if keep[d]:
            for i in range(start, ends[d]):
                out[at] = data[i]
                at += 1
            out_ends[kept] = at
            kept += 1
        start = ends[d]
    return at


def _select(data: np.ndarray, ends: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The text of some documents, and its ends."""
    out, out_ends = np.empty_like(data), np.empty(int(keep.sum()), np.int64)
    return out[: _copy_documents(data, ends, keep, out, out_ends)], out_ends


def _hash_documents(data: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(D, 2) uint64: the first half of the sha256 of each document's clean text."""
    view = data.data
    bounds = pairwise([0, *ends.tolist()])
    digests = [hashlib.sha256(view[start:end]).digest()[:16] for start, end in bounds]
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


def _is_held_out(hashes: np.ndarray, fraction: float) -> np.ndarray:
    """By the text alone: independent of how the corpus is cut; duplicates get the same split."""
    return hashes[:, 0] < np.uint64(int(fraction * 2**64))


class _UnitWriter:
    """Writes the streams of a unit, each under a temporary name until ``close``."""

    def __init__(self, job: Job, key: str, dtype: np.dtype):
        self._job, self._key = job, key
        self._dtype = dtype.newbyteorder("<")
        self._files: dict[tuple[str, str], BinaryIO] = {}
        self._sizes: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        self._names: dict[str, int] = {}

    def _temporary(self, split: str, stream: str) -> Path:
        path = unit_file(self._job, self._key, split, stream)
        return path.with_name(f"{path.name}.{os.getpid()}.tmp")

    def places_of(self, raw: RawBatch, numbers: np.ndarray) -> np.ndarray:
        """(D,) PLACE of some documents."""
        places = np.empty(len(numbers), PLACE)
        for order, number in enumerate(numbers.tolist()):
            name, place = raw.where(number)
            places[order] = self._names.setdefault(name, len(self._names)), place
        return places

    def write(
        self, split: str, batch: TokenBatch, hashes: np.ndarray, places: np.ndarray | None
    ) -> None:
        """Append the chosen documents of a batch."""
        chosen = batch.document_sentences > 0
        documents = np.empty(int(chosen.sum()), DOCUMENT)
        documents["hash"] = hashes[chosen]
        documents["sentences"] = batch.document_sentences[chosen]
        documents["tokens"] = batch.document_tokens[chosen]
        values = {
            "tokens": batch.tokens.astype(self._dtype, copy=False),
            "sentences": np.diff(batch.sentence_ends, prepend=0).astype("<u4"),
            "documents": documents,
        }
        if places is not None:
            values[PLACES] = places[chosen]
        for stream, array in values.items():
            key = (split, stream)
            if key not in self._files:
                self._files[key] = open(self._temporary(*key), "wb")  # noqa: SIM115
            self._files[key].write(array.view(np.uint8).data)
            self._sizes[split][stream] += len(array)

    def close(self) -> dict[str, dict[str, int]]:
        """Rename every file to its final name; returns the sizes by split."""
        for (split, stream), file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            file.close()
            path = unit_file(self._job, self._key, split, stream)
            os.replace(self._temporary(split, stream), path)
        if self._names:
            write_atomically(
                names_file(self._job, self._key), json.dumps(list(self._names)).encode()
            )
        return {split: dict(sizes) for split, sizes in self._sizes.items() if sizes}

    def abort(self) -> None:
        """Delete the files written so far."""
        for key, file in self._files.items():
            file.close()
            self._temporary(*key).unlink(missing_ok=True)
