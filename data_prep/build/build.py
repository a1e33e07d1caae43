"""Raw text to a dataset directory: cut units, run them, write shards, write the manifest.

After a kill at any moment the same command continues from the units that are done. The result is
the same bytes for any number of workers.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep.build.assemble import assign_documents, write_shard
from data_prep.build.deduplicate import REASON, Duplicates, find_duplicates, quarantined
from data_prep.build.input_record import NAME as INPUT_RECORD
from data_prep.build.job import RECORD_KEY, WORK, BuildArguments, Job, claim_output, identity
from data_prep.build.progress import Progress
from data_prep.build.task_feed import TaskFeed
from data_prep.build.unit import run_unit, share_loaded
from data_prep.build.unit_files import record_file
from data_prep.errors import (
    DataPrepError,
    InterruptedRunError,
    SourceError,
    UsageError,
    is_full_disk,
)
from data_prep.executors.base import Runner
from data_prep.executors.serial import SerialRunner
from data_prep.executors.stop import STOP, stop_on_signals
from data_prep.files import sha256_of, sync_directory
from data_prep.format.card import write_card
from data_prep.format.lock import build_lock
from data_prep.format.manifest import (
    RECORDS,
    Manifest,
    ShardRecord,
    TokenizerRecord,
    dtype_for,
    sorted_shards,
    write_manifest,
)
from data_prep.format.shard import TOKENIZER_DIRECTORY, Dataset, open_dataset
from data_prep.segment.segmenters import get_segmenter, segmenter_record
from data_prep.sources.base import Unit, group_into_units
from data_prep.sources.registry import find_input, get_source
from data_prep.tokenizer.engines import get_engine
from data_prep.tokenizer.load import LoadedTokenizer, load_tokenizer

LEAST_FREE_BYTES = 32 << 20


@dataclass(frozen=True)
class BuildOptions:
    """How a build runs; the result does not depend on these."""

    workers: int = 1
    runner: Runner | None = None  # used instead of local workers; the caller closes it
    engine: str = "auto"
    accept_times: bool = False  # accept input whose modification times have changed
    show_progress: bool = False


def build(
    inputs: Sequence[str],
    tokenizer: str | Path,
    output: str | Path,
    arguments: BuildArguments,
    options: BuildOptions | None = None,
    end_of_document: str | None = None,
) -> Dataset:
    """Build a dataset directory, continue one, or return it if it is complete.

    inputs: files, folders or patterns (or names, for the source ``hf``). tokenizer: see
    ``load_tokenizer``. Raises DataPrepError with a message of one line; finished work stays.
    """
    options = options or BuildOptions()
    output = Path(output)
    loaded = load_tokenizer(tokenizer, end_of_document=end_of_document)
    engine = get_engine(options.engine, loaded)
    source = get_source(arguments.source)
    # a source whose documents are sentences overrides the segmenter
    arguments = replace(arguments, segmenter=getattr(source, "segmenter", arguments.segmenter))
    segmenter = get_segmenter(arguments.segmenter, arguments.language)
    files = find_input(source, inputs, output)
    if files.left_out and options.show_progress:
        print(f"warning: {files.left_out}", file=sys.stderr)
    values = identity(arguments, files, loaded.sha256, segmenter.version)
    if claim_output(output, values, files, options.accept_times):
        shutil.rmtree(output / WORK, ignore_errors=True)  # a kill between manifest and clean-up
        return open_dataset(output)
    tokenizer_record = _tokenizer_record(loaded, engine.name)
    job = Job(str(output), arguments, engine.name, loaded.end_of_document_token)
    with (
        _readable_errors(output),
        build_lock(job.work, job.output),
        _undo_if_empty(job),
        stop_on_signals(),
    ):
        loaded.save(job.tokenizer)
        (job.work / "units").mkdir(exist_ok=True)
        units = group_into_units(source.parts(files, arguments.options), arguments.unit_bytes)
        _check_disk(output, units, dtype_for(loaded.vocab_size))
        runner = options.runner or _local_runner(options.workers, units)
        if isinstance(runner, SerialRunner):
            share_loaded(job, loaded, engine)
        del engine  # tens of MiB; worker processes load it themselves
        try:
            records = _run_units(job, units, runner, options.show_progress)
            dropped = find_duplicates(job, records) if arguments.deduplicate else {}
            shards = _write_shards(job, records, runner, loaded, dropped)
        finally:
            if options.runner is None:
                runner.close()
        manifest = Manifest(
            vocab_size=loaded.vocab_size,
            tokens_dtype=dtype_for(loaded.vocab_size),
            tokenizer=tokenizer_record,
            shards=sorted_shards(shards),
            segmenter=segmenter_record(segmenter, arguments.language),
            source={"name": source.name, "summary": source.summary},
            arguments={**values, **_input_record(job)},
            counters=_final_counters(records, sum(map(len, dropped.values()))),
            max_sentence_tokens=arguments.max_sentence_tokens,
        )
        _finish(job, output, loaded, manifest, records, dropped)
    return open_dataset(output)


def _local_runner(workers: int, units: Sequence[Unit]) -> Runner:
    """A runner on this machine; one worker, or a single unit, runs in this process."""
    if workers < 1:
        raise UsageError(f"--workers {workers}: at least 1")
    if workers == 1 or (len(units) <= 1 and not any(unit.streamed for unit in units)):
        return SerialRunner()
    from data_prep.executors.processes import ProcessesRunner

    return ProcessesRunner(workers)


def _input_record(job: Job) -> dict[str, str]:
    """The hash of the input record for the manifest; builds of earlier versions have no record."""
    path = job.work / INPUT_RECORD
    return {RECORD_KEY: sha256_of(path)} if path.exists() else {}


def _tokenizer_record(loaded: LoadedTokenizer, engine: str) -> TokenizerRecord:
    return TokenizerRecord(
        name=loaded.name,
        kind=loaded.kind,
        sha256=loaded.sha256,
        bos_id=loaded.bos_id,
        end_of_document_id=loaded.end_of_document_id,
        engine=engine,
    )


@contextmanager
def _undo_if_empty(job: Job) -> Iterator[None]:
    """Remove the output of a build that failed before any unit was done."""
    try:
        yield
    except DataPrepError:
        if not any((job.work / "units").glob("*.done")):
            shutil.rmtree(job.work)
            with suppress(OSError):
                os.rmdir(job.output)  # only when it is empty
        raise


@contextmanager
def _readable_errors(output: Path) -> Iterator[None]:
    """Turn operating system errors into one line with the cure."""
    try:
        yield
    except OSError as error:
        name = error.filename or output
        if is_full_disk(error):
            raise DataPrepError(
                f"no space left for {name}; free some and run the same command again: it goes on"
            ) from None
        raise DataPrepError(f"{name}: {error.strerror or error}; nothing done is lost") from None


def _check_disk(output: Path, units: Iterable[Unit], tokens_dtype: str) -> None:
    """Refuse a disk that is clearly too small: less than half of a low estimate is free."""
    needed = sum(unit.weight for unit in units) // 8 * (2 if tokens_dtype == "uint16" else 4)
    free = shutil.disk_usage(output).free
    if free < needed // 2:
        raise UsageError(
            f"output {output}: about {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        )


def _run_units(job: Job, units: Sequence[Unit], runner: Runner, show: bool) -> list[dict[str, Any]]:
    records: dict[str, dict[str, Any]] = {}
    feed = TaskFeed(job, units, runner.width)
    with Progress(feed.weight, show) as progress, closing(feed.tasks()) as tasks:
        for record in runner.run(run_unit, tasks):
            records[record["key"]] = record
            progress.update(record["input_bytes"], record["counters"])
            if shutil.disk_usage(job.output).free < LEAST_FREE_BYTES:
                raise OSError(errno.ENOSPC, "no space left")
    if not feed.complete or len(records) < feed.num_tasks:
        done = f"{len(records)} units of work are done"
        raise InterruptedRunError(f"stopped: {done}; run the same command again to go on")
    return [records[key] for key in sorted(records)]


def _write_shards(
    job: Job,
    records: list[dict[str, Any]],
    runner: Runner,
    loaded: LoadedTokenizer,
    dropped: Duplicates,
) -> list[ShardRecord]:
    tasks = assign_documents(job, records, dropped)
    if not tasks:
        reasons = ", ".join(f"{name} {count}" for name, count in _sum_counters(records).items())
        first = _first_quarantined(job)
        shutil.rmtree(job.work / "units")  # nothing in it can be continued
        raise SourceError(f"the input holds no document that can be used ({reasons}){first}")
    dtype = dtype_for(loaded.vocab_size)
    shards = list(runner.run(write_shard, [(job, task, dtype) for task in tasks]))
    if STOP.requested and len(shards) < len(tasks):
        raise InterruptedRunError("stopped while shards were written; run the same command again")
    return shards


def _first_quarantined(job: Job) -> str:
    """The first dropped record, for a message."""
    paths = sorted((job.work / "units").glob("*.quarantine"))
    if not paths:
        return ""
    with open(paths[0], encoding="utf-8") as file:
        entry = json.loads(file.readline())
    detail = f": {entry['detail']}" if "detail" in entry else ""
    return f"; first {entry['file']} at {entry['offset']}, {entry['reason']}{detail}"


def _sum_counters(records: Sequence[dict[str, Any]]) -> dict[str, int]:
    counters: Counter[str] = Counter()
    for record in records:
        counters.update(record["counters"])
    return dict(sorted(counters.items()))


def _final_counters(records: Sequence[dict[str, Any]], num_duplicates: int) -> dict[str, int]:
    counters = _sum_counters(records)
    if num_duplicates:
        counters["documents"] -= num_duplicates
        counters[f"dropped/{REASON}"] = num_duplicates
    return dict(sorted(counters.items()))


def _finish(
    job: Job,
    output: Path,
    loaded: LoadedTokenizer,
    manifest: Manifest,
    records: Sequence[dict[str, Any]],
    dropped: Duplicates,
) -> None:
    """Write tokenizer, records and last the manifest; then remove the work folder."""
    loaded.save(output / TOKENIZER_DIRECTORY)
    for kind in RECORDS:
        name = f"{kind}.jsonl"
        with open(job.work / name, "wb") as file:
            for record in records:
                path = record_file(job, record["key"], kind)
                if path.exists():
                    file.write(path.read_bytes())
                if kind == "quarantine":
                    file.write(quarantined(job, record["key"], dropped))
        os.replace(job.work / name, output / name)
    if (job.work / INPUT_RECORD).exists():
        os.replace(job.work / INPUT_RECORD, output / INPUT_RECORD)
    for path in output.glob(".*.tmp"):  # of workers that were killed
        path.unlink()
    write_card(output, manifest)
    sync_directory(output)
    write_manifest(output, manifest)
    shutil.rmtree(job.work)
