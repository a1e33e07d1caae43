"""One unit of work: read, clean, split, segment, encode, and write under the work folder.

A unit's files get their names only when they are complete, its ``.done`` record last. An
interrupted unit is done again, with the same result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.build.encode import Encoder
from data_prep.build.heap import trim_heap
from data_prep.build.job import Job
from data_prep.build.unit_files import UnitWriter, done_file, write_records
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
from data_prep.text.encodings import AUTO, FEW_BAD, MOST_BAD
from data_prep.text.normalise import CleanBatch
from data_prep.tokenizer.engines import get_engine
from data_prep.tokenizer.load import LoadedTokenizer, load_tokenizer
from data_prep.tokenizer.reference import Engine
from gpst.jit.compiled import compiled

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
    writer = UnitWriter(job, unit.key, encoder.dtype)
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
    write_records(job, unit.key, recorder)
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
            recorder.file_decoded(part.origin, part.base, part.decoded)
        renamed = recorder.renamed(part.path, part.origin, part.base)
        for batch in source.read(part, options, renamed):
            yield replace(batch, file=part.origin, places=batch.places + part.base)


def _run_batch(
    job: Job, encoder: Encoder, raw: RawBatch, recorder: Recorder, writer: UnitWriter
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
        named = job.arguments.options.encoding
        encoding = "UTF-8" if named == AUTO else named.upper()
        raise SourceError(
            f"{file}, record at {place}: not valid {encoding}; or: --on-bad-utf8 replace | skip"
        )
    most = np.maximum(FEW_BAD, MOST_BAD * (raw.ends - raw.starts))
    for number in bad.tolist():
        if job.arguments.on_bad_utf8 == "skip" or clean.num_bad[number] > most[number]:
            keep[number] = False
            detail = f"{clean.num_bad[number]} places that do not fit"
            if job.arguments.source not in ("parquet", "hf"):
                which = "its" if job.arguments.options.encoding == AUTO else "another"
                detail += f"; or name {which} --encoding"
            recorder.drop("bad_utf8", *raw.where(number), detail)
        else:
            recorder.bytes_replaced(*raw.where(number), int(clean.num_bad[number]))
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
