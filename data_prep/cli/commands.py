"""What each command does. Heavy modules are imported inside, so that --help is fast."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.errors import EXIT_DATA, UsageError, unwritable
from data_prep.executors.base import Runner
from data_prep.sources.options import SourceOptions

if TYPE_CHECKING:
    from data_prep.build.job import BuildArguments
    from data_prep.format.shard import Dataset
    from data_prep.sources.base import Source
    from data_prep.sources.listing import FileList

TRAINING = ("kind", "vocab_size", "cased", "sample_mib")  # options that determine a vocabulary


def run(options: Namespace) -> int:
    """Run the command that was parsed; returns the exit code."""
    return {
        "build": build,
        "tokenizer": tokenizer,
        "verify": verify,
        "inspect": inspect,
        "sources": sources,
        "merge": merge,
    }[options.command](options)


def build(options: Namespace) -> int:
    """``build``: make a dataset directory, on this machine or as one of the ranks of an MPI run."""
    from gpst.jit.compiled import without_extensions

    without_extensions()
    if options.backend != "mpi":
        return _build(options, None)
    from data_prep.executors.mpi import mpi_runner

    with mpi_runner() as runner:
        return _build(options, runner) if runner else 0


def _build(options: Namespace, runner: Runner | None) -> int:
    from data_prep.build.build import BuildOptions
    from data_prep.build.build import build as build_dataset
    from data_prep.build.job import BuildArguments

    arguments = BuildArguments(
        source=options.source,
        options=SourceOptions.from_arguments(options),
        segmenter=options.segmenter,
        language=options.language,
        max_sentence_tokens=options.max_sentence_tokens,
        validation_fraction=options.validation_fraction,
        shard_tokens=options.shard_tokens,
        on_bad_utf8=options.on_bad_utf8,
        deduplicate=options.deduplicate,
        unit_bytes=round(options.unit_mib * (1 << 20)),
    )
    if options.dry_run:
        return _dry_run(options, arguments)
    running = BuildOptions(
        workers=options.workers,
        runner=runner,
        engine=options.engine,
        accept_times=options.input_changed == "accept",
        show_progress=not options.quiet,
    )
    dataset = build_dataset(
        options.input, options.tokenizer, options.output, arguments, running,
        options.end_of_document,
    )  # fmt: skip
    _report(dataset)
    for split, count in dataset.manifest.num_documents.items():
        if not count and (split == "train" or arguments.validation_fraction):
            cure = "--split-blank-lines (a document a paragraph) or another --validation-fraction"
            _warn(options, f"no document fell into {split}; try {cure}")
    cut = dataset.manifest.counters.get("documents_cut_too_long", 0)
    if cut and options.source == "text" and not options.split_blank_lines:
        files = "a file was" if cut == 1 else f"{cut} files were"
        _warn(options, f"{files} too long for one document and cut; try --split-blank-lines")
    return 0


def _warn(options: Namespace, text: str) -> None:
    if not options.quiet:
        print(f"warning: {text}", file=sys.stderr)


def _dry_run(options: Namespace, arguments: BuildArguments) -> int:
    from data_prep.build.estimate import estimate, free_bytes

    if options.workers < 1:
        raise UsageError(f"--workers {options.workers}: at least 1")
    totals = estimate(
        options.input,
        options.tokenizer,
        arguments,
        options.engine,
        options.end_of_document,
        options.output,
    )
    for line in totals.lines(options.workers, free_bytes(options.output)):
        print(line)
    return 0


def _report(dataset: Dataset) -> None:
    manifest = dataset.manifest
    print(f"{dataset.path}: {manifest.fingerprint[:16]}, engine {manifest.tokenizer.engine}")
    for split, count in manifest.num_documents.items():
        print(
            f"  {split}: {count:,} documents, {manifest.num_sentences[split]:,} sentences"
            f" (the marks at documents' ends among them), {manifest.num_tokens[split]:,} tokens"
        )
    for reason, count in manifest.counters.items():
        print(f"  {reason}: {count:,}")


def merge(options: Namespace) -> int:
    """``merge``: join datasets."""
    from data_prep.dataset.merge import merge as merge_datasets

    _report(merge_datasets(options.datasets, options.output, not options.quiet))
    return 0


def tokenizer(options: Namespace) -> int:
    """``tokenizer``: train a vocabulary."""
    from data_prep.build.tokenizer_record import is_trained, training_identity, write_record
    from data_prep.files import write_atomically
    from data_prep.sources.registry import find_input, get_source
    from data_prep.tokenizer.load import load_tokenizer
    from data_prep.tokenizer.train import train_tokenizer

    if options.sample_mib < 1:
        raise UsageError(f"--sample-mib {options.sample_mib}: at least 1")
    output = Path(options.output)
    source, source_options = get_source(options.source), SourceOptions.from_arguments(options)
    files = find_input(source, options.input, output)
    training = {name: getattr(options, name) for name in TRAINING}
    values = training_identity(options.source, source_options, files, training)
    if is_trained(output, values, files, options.input_changed == "accept"):
        loaded = load_tokenizer(output)
        print(f"{output}: complete already: {loaded.kind}, {loaded.vocab_size} tokens")
        return 0
    if files.left_out:
        _warn(options, files.left_out)
    text = train_tokenizer(
        lambda: _sample(options, source, source_options, files),
        kind=options.kind,
        vocab_size=options.vocab_size,
        lowercase=not options.cased,
    )
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_record(output, values, files)
        write_atomically(output / "tokenizer.json", text.encode())
        loaded = load_tokenizer(output)
        loaded.save(output)
    except OSError as error:
        (output / "tokenizer.json").unlink(missing_ok=True)  # new, or written by this program
        raise unwritable(output, error) from None
    print(f"{output}: {loaded.kind}, {loaded.vocab_size} tokens")
    if loaded.vocab_size < options.vocab_size:
        _warn(options, f"the text gives {loaded.vocab_size} tokens only")
    if loaded.vocab_size > options.vocab_size:
        wanted = f"more than --vocab-size {options.vocab_size}"
        _warn(options, f"the letters of the text alone give {loaded.vocab_size} tokens, {wanted}")
    return 0


def _sample(
    options: Namespace, source: Source, source_options: SourceOptions, files: FileList
) -> Iterator[str]:
    """Clean documents of units spread evenly over the input, --sample-mib in all."""
    from data_prep.sources.base import MIB, group_into_units, read_parts
    from data_prep.text.batch import Recorder, merge_small
    from data_prep.text.decode import clean_documents

    units = group_into_units(source.parts(files, source_options), 4 * MIB)
    share = options.sample_mib * MIB / max(sum(unit.weight for unit in units), 1)
    step = max(1, round(1 / share))
    for unit in units[::step]:
        # a large compressed file is not read to its end for a sample
        left = unit.weight * share + 4 * MIB if unit.streamed else float("inf")
        for batch in merge_small(read_parts(source, unit.parts, source_options, Recorder())):
            if left <= 0:
                break
            _, clean = clean_documents(batch, source_options.encoding, Recorder())
            left -= len(clean.data)
            raw = clean.data.tobytes()
            for start, end in pairwise([0, *clean.ends.tolist()]):
                yield raw[start:end].decode()


def verify(options: Namespace) -> int:
    """``verify``: problems on standard error, one a line."""
    from data_prep.dataset.verify import verify as find_problems
    from data_prep.format.shard import open_dataset

    problems = find_problems(options.dataset, not options.quiet)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return EXIT_DATA
    manifest = open_dataset(options.dataset).manifest
    tokens = sum(manifest.num_tokens.values())
    print(f"{options.dataset}: sound ({len(manifest.shards)} shards, {tokens:,} tokens)")
    return 0


def inspect(options: Namespace) -> int:
    """``inspect``: summary and documents."""
    from data_prep.dataset.inspect import show_documents, summary
    from data_prep.format.shard import open_dataset

    dataset = open_dataset(options.dataset)
    _check_range(options, dataset.manifest.num_documents[options.split])
    for line in summary(options.dataset):
        print(line)
    for line in show_documents(dataset, options.split, options.first, options.documents):
        print(line)
    return 0


def _check_range(options: Namespace, count: int) -> None:
    if options.documents < 0:
        raise UsageError(f"--documents {options.documents}: at least 0")
    if not 0 <= options.first < max(count, 1):
        raise UsageError(
            f"--first {options.first}: the documents of {options.split} are 0 to {count - 1}"
            if count
            else f"--first {options.first}: {options.split} has no documents"
        )


def sources(options: Namespace) -> int:
    """``sources``: the kinds of input."""
    from data_prep.sources.registry import NAMES, get_source

    for name in NAMES:
        print(f"{name:12s} {get_source(name).summary}")
    return 0
