"""Source ``hf``: Hugging Face datasets through the library ``datasets``; a document is a row.

The input is a name on the Hub or a local folder (offline): data files, or a saved dataset. Rows
are streamed; a part is one of the dataset's own shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from data_prep.errors import UsageError
from data_prep.packages import PackageError, import_package
from data_prep.sources.base import MIB, InputFile, Part
from data_prep.sources.jsonl import encode_text
from data_prep.sources.options import SourceOptions
from data_prep.sources.ranges import in_batches
from data_prep.text.batch import RawBatch, Recorder

SHARD_WEIGHT = 32 * MIB  # unknown before it is read


class HuggingFaceSource:
    """See the module."""

    name = "hf"
    summary = "Hugging Face datasets by name or local folder; a document is --text-field of a row"
    suffixes = ()
    takes_names = True  # the input is handed to plan as it was given

    def parts(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a shard of the dataset. Raises UsageError when it cannot be opened."""
        for file in files:
            rows = _open(file.path, options)
            if rows.features is not None and options.text_field not in rows.features:
                known = ", ".join(list(rows.features)[:8])
                raise UsageError(f"{file.path} has no column {options.text_field!r}, only {known}")
            for shard in range(rows.num_shards):
                yield Part(file.path, SHARD_WEIGHT, shard, rows.num_shards)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read. part.stop is the number of shards."""
        name = f"{part.path}#{part.start}"
        yield from in_batches(_texts(part, name, options, recorder), name)


def _texts(
    part: Part, name: str, options: SourceOptions, recorder: Recorder
) -> Iterator[tuple[int, bytes]]:
    """(row, text) of a shard."""
    rows = _open(part.path, options).shard(num_shards=part.stop, index=part.start)
    for number, row in enumerate(rows):
        text = row.get(options.text_field)
        if isinstance(text, str):
            yield number, encode_text(text)
        else:
            recorder.drop("missing_text_field", name, number)


def _open(name: str, options: SourceOptions) -> Any:
    """The dataset as a stream of rows."""
    try:
        datasets: Any = import_package("datasets", "load_dataset")
    except PackageError as error:
        raise UsageError(f"source hf needs the package datasets, which {error}") from None
    datasets.disable_progress_bars()
    try:
        if any(os.path.exists(os.path.join(name, f)) for f in ("state.json", "dataset_dict.json")):
            saved: Any = datasets.load_from_disk(name)
            if isinstance(saved, datasets.DatasetDict):
                saved = saved[options.hf_split]
            return saved.to_iterable_dataset(num_shards=1)
        return datasets.load_dataset(
            name, options.hf_config, split=options.hf_split, streaming=True
        )
    except Exception as error:  # of the Hub, of pyarrow, of fsspec, ...
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"hf dataset {name!r} cannot be opened: {reason}") from None
