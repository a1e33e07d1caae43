"""A build as data: its arguments, its identity, and the layout of its work folder."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep.build.input_record import check_unchanged, write_record
from data_prep.errors import TokenizerError, UsageError
from data_prep.files import write_atomically
from data_prep.format.manifest import MANIFEST_NAME, read_manifest
from data_prep.sources.base import MIB, InputFile
from data_prep.sources.options import SourceOptions
from data_prep.tokenizer.load import load_tokenizer

WORK = ".work"
VERSION_KEY = "segmenter_version"
RECORD_KEY = "input_record"
"""Among a manifest's arguments: the sha256 of the record of the input's files."""


@dataclass(frozen=True)
class BuildArguments:
    """Everything that the bytes of a dataset depend on, besides the input and the tokenizer."""

    source: str
    options: SourceOptions = field(default_factory=SourceOptions)
    segmenter: str = "fast"
    language: str = "en"
    max_sentence_tokens: int = 256
    validation_fraction: float = 0.005
    shard_tokens: int = 1 << 28
    on_bad_utf8: str = "replace"
    deduplicate: bool = False
    unit_bytes: int = 32 * MIB

    def __post_init__(self) -> None:
        if self.max_sentence_tokens < 2:
            raise UsageError(f"--max-sentence-tokens {self.max_sentence_tokens}: at least 2")
        if not 0 <= self.validation_fraction < 1:
            raise UsageError(
                f"--validation-fraction {self.validation_fraction}: from 0 to less than 1"
            )
        if self.shard_tokens < 1:
            raise UsageError(f"--shard-tokens {self.shard_tokens}: at least 1")
        if self.on_bad_utf8 not in ("replace", "skip", "fail"):
            raise UsageError(f"--on-bad-utf8 {self.on_bad_utf8}: replace, skip or fail")
        if self.unit_bytes < 1:
            raise UsageError(f"--unit-mib: at least one byte, not {self.unit_bytes}")


@dataclass(frozen=True)
class Job:
    """What a worker needs: where to write, what to do, which tokenizer and engine."""

    output: str
    arguments: BuildArguments
    engine: str
    end_of_document: str

    @property
    def work(self) -> Path:
        """The folder of unfinished work; removed when the dataset is complete."""
        return Path(self.output, WORK)

    @property
    def tokenizer(self) -> Path:
        """The job's copy of the tokenizer."""
        return self.work / "tokenizer"


def identity(
    arguments: BuildArguments,
    files: Collection[InputFile],
    tokenizer_sha256: str,
    segmenter_version: str = "",
) -> dict[str, Any]:
    """What makes two builds the same: flat, so that a difference can be named."""
    values = asdict(arguments)
    values[VERSION_KEY] = segmenter_version
    del values["options"]
    values.update(arguments.options.identity())
    listing, size = hashlib.sha256(), 0
    for file in files:
        listing.update(os.fsencode(f"{file.path}\0{file.num_bytes}\n"))
        size += file.num_bytes
    values["tokenizer"] = tokenizer_sha256
    values["input"] = f"{len(files)} files, {size} bytes, "
    values["input"] += listing.hexdigest()[:16]
    return values


def claim_output(
    output: Path, values: dict[str, Any], files: Iterable[InputFile], accept_times: bool = False
) -> bool:
    """Claim the output directory for this build, new or with earlier work of the same build.

    accept_times: accept input of which only the modification times have changed.

    Returns True when the dataset in it is complete already; one of another segmenter version stays
    as it is, with a warning. Raises UsageError when it holds something else, or the work of a build
    with other arguments, other input or another segmenter version.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output {output} cannot be made: {error.strerror}") from None
    record = output / WORK / "job.json"
    complete = (output / MANIFEST_NAME).exists()
    if not complete and not os.access(output, os.W_OK | os.X_OK):
        raise UsageError(
            f"output {output} cannot be written: no permission, or a read-only file system"
        )
    if complete or record.exists():
        earlier = dict(read_manifest(output).arguments) if complete else _read_job(record)
        earlier.pop(RECORD_KEY, None)
        earlier = _with_later_keys(earlier, values)
        check_unchanged(output, output if complete else record.parent, files, accept_times)
        if complete and earlier[VERSION_KEY] != values[VERSION_KEY]:
            print(
                f"warning: the sentences of {output} are those of version {earlier[VERSION_KEY]} of"
                f" the segmenter {values['segmenter']}, not {values[VERSION_KEY]}; to build it"
                " again, remove it",
                file=sys.stderr,
            )
            earlier[VERSION_KEY] = values[VERSION_KEY]
        check_same(output, earlier, values)
        return complete
    others = sorted(p.name for p in output.iterdir() if p.name != WORK)
    if others:
        raise UsageError(
            f"output {output} is not empty ({others[0]}) and not a dataset; choose another output"
        )
    record.parent.mkdir(exist_ok=True)
    write_record(record.parent, files)
    write_atomically(record, json.dumps(values, indent=1, sort_keys=True).encode())
    return False


def _with_later_keys(earlier: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an earlier build, with what versions of that time did not store."""
    known = {"fast": "1"}  # of packages it is not known
    version = known.get(earlier.get("segmenter", ""), values[VERSION_KEY])
    return {"language": "en", VERSION_KEY: version} | earlier


def _read_job(record: Path) -> dict[str, Any]:
    return json.loads(record.read_text(encoding="utf-8"))


def check_same(output: Path, earlier: dict[str, Any], values: dict[str, Any]) -> None:
    """Raise UsageError that names the first difference between earlier and new arguments."""
    for name in sorted(set(earlier) | set(values)):
        if earlier.get(name) == values.get(name):
            continue
        if name == "input":  # of an earlier version, which has no record of the files
            was, now = (str(v.get(name)).rpartition(", ")[0] for v in (earlier, values))
            differ = f"{was}, not {now}" if was != now else f"{now}, but other paths or sizes"
            raise UsageError(
                f"output {output} was built from other input: {differ}; choose another output,"
                " or remove it"
            )
        if name == "tokenizer":
            raise UsageError(
                f"output {output} was built with another tokenizer{_stored_tokenizer(output)};"
                " choose another output, or remove it"
            )
        raise UsageError(
            f"output {output} was built with {name.replace('_', '-')} {earlier.get(name)!r}, not"
            f" {values.get(name)!r}; choose another output, or remove it"
        )


def _stored_tokenizer(output: Path) -> str:
    """In words, what the tokenizer of an earlier build is; empty where that is not to be had."""
    for folder in (output / "tokenizer", output / WORK / "tokenizer"):
        with suppress(TokenizerError, OSError):
            stored = load_tokenizer(folder)
            return f", {stored.kind} with {stored.vocab_size:,} tokens (in {folder})"
    return ""
