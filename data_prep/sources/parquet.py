"""Source ``parquet``: a document is a row of a text column, read without a Python string a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.batch import RawBatch, Recorder
from data_prep.errors import UsageError
from data_prep.sources.base import InputFile, Part, SourceOptions
from data_prep.sources.ranges import BATCH_BYTES


class ParquetSource:
    """See the module."""

    name = "parquet"
    summary = "parquet files; a document is --text-field of a row"
    suffixes = (".parquet",)

    def plan(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a row group. Raises UsageError when the column is not there or is no text."""
        for file in files:
            if file.num_bytes == 0:
                yield Part(file.path, 0)
                continue
            try:
                metadata = pq.read_metadata(file.path)
            except (pa.ArrowException, OSError):
                yield Part(file.path, file.num_bytes)  # reading it will say so
                continue
            column = _column_of(file.path, metadata, options.text_field)
            for group in range(metadata.num_row_groups):
                weight = metadata.row_group(group).column(column).total_uncompressed_size
                yield Part(file.path, weight, group, group + 1)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        if Path(part.path).stat().st_size == 0:
            recorder.drop("empty_file", part.path, 0)
            return
        if part.stop is None:
            recorder.drop("damaged_file", part.path, 0, "not a parquet file, or its end is missing")
            return
        try:
            yield from _rows(part, options.text_field, recorder)
        except (pa.ArrowException, OSError) as error:
            recorder.drop("damaged_row_group", part.path, part.start, str(error))


def _column_of(path: str, metadata: Any, field: str) -> int:
    schema = metadata.schema.to_arrow_schema()
    if field not in schema.names:
        raise UsageError(f"{path} has no column {field!r}, only {', '.join(schema.names[:8])}")
    kind = schema.field(field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)):
        raise UsageError(f"{path}: column {field!r} is {kind}, not text; choose --text-field")
    # the columns of the metadata are leaves; a top-level text column is one of them
    names = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    return names.index(field)


def _rows(part: Part, field: str, recorder: Recorder) -> Iterator[RawBatch]:
    # As dictionaries: a repeated text is held once, however often its rows come.
    with pq.ParquetFile(
        part.path, read_dictionary=[field], buffer_size=1 << 20, pre_buffer=False
    ) as file:
        groups = range(part.start, part.stop or part.start + 1)
        first = sum(file.metadata.row_group(g).num_rows for g in range(part.start))
        rows = sum(file.metadata.row_group(g).num_rows for g in groups)
        if rows == 0:
            return
        size = max(1, min(rows, BATCH_BYTES * rows // max(part.weight, 1)))
        batches = file.iter_batches(
            size, row_groups=list(groups), columns=[field], use_threads=False
        )
        for batch in batches:
            yield from _documents(batch.column(0), part.path, first, recorder)
            first += len(batch)


def _documents(
    column: pa.DictionaryArray, path: str, first: int, recorder: Recorder
) -> Iterator[RawBatch]:
    """A column of texts as batches that share its dictionary; nulls are recorded.

    A batch has BATCH_BYTES of text at most, or one document. first: the row number of the column's
    first value, for messages.
    """
    there = column.is_valid().to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(~there).tolist():
        recorder.drop("missing_text_field", path, first + row)
    places = np.flatnonzero(there) + first
    values = column.dictionary.cast(pa.large_binary())
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[values.offset :]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    chosen = column.indices.drop_null().to_numpy()
    starts, ends = offsets[chosen], offsets[chosen + 1]
    sizes = np.cumsum(ends - starts)
    at = done = 0
    while at < len(sizes):
        stop = max(at + 1, int(np.searchsorted(sizes, done + BATCH_BYTES, "right")))
        yield RawBatch(data, starts[at:stop], ends[at:stop], path, places[at:stop])
        at, done = stop, int(sizes[stop - 1])
