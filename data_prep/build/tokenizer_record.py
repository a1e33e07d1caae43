"""What a vocabulary was trained on, kept beside it, so that the same command finds it finished."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from data_prep.build import input_record
from data_prep.build.job import BuildArguments, check_same, identity
from data_prep.errors import UsageError
from data_prep.files import write_atomically
from data_prep.sources.base import InputFile
from data_prep.sources.options import SourceOptions

RECORD = "trained_from.json"


def training_identity(
    source: str, options: SourceOptions, files: Collection[InputFile], training: dict[str, Any]
) -> dict[str, Any]:
    """What makes two vocabularies the same: flat, so that a difference can be named.

    training: kind, vocab_size, ... of the command. The input is told as a build's is.
    """
    input_ = identity(BuildArguments(source, options), files, "")["input"]
    return {"source": source, **options.identity(), **training, "input": input_}


def write_record(output: Path, values: dict[str, Any], files: Iterable[InputFile]) -> None:
    """Keep what the vocabulary that is about to be written in `output` was trained on."""
    input_record.write_record(output, files)
    write_atomically(output / RECORD, json.dumps(values, indent=1, sort_keys=True).encode())


def is_trained(
    output: Path, values: dict[str, Any], files: Iterable[InputFile], accept_times: bool
) -> bool:
    """Whether `output` holds the whole vocabulary that `values` describe, trained on these files.

    False: there is none, or the same one half written. Raises UsageError when there is another one.
    """
    if not (output / "tokenizer.json").exists():
        return False
    try:
        earlier = json.loads((output / RECORD).read_text(encoding="utf-8"))
        input_record.check_unchanged(output, output, files, accept_times)
        check_same(output, dict(earlier), values)
    except (OSError, ValueError, TypeError):
        raise UsageError(
            f"output {output} holds a tokenizer already, and no readable {RECORD} that says of"
            " what; choose another output, or remove it"
        ) from None
    return (output / "tokenizer_config.json").exists()  # it is written last
