"""Source ``parquet``: a document is a row of a text column, read without a Python string a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.errors import UsageError
from data_prep.sources.base import InputFile, Part
from data_prep.sources.options import SourceOptions
from data_prep.sources.ranges import BATCH_BYTES
from data_prep.text.batch import RawBatch, Recorder

# bytes of a batch that a dictionary's texts, each in every row, would take
MOST_REPEATED = 32 << 20


_TEXT = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
    pa.types.is_null,  # of a file in which no row has a text: each is recorded
)  # fmt: skip


class ParquetSource:
    """See the module."""

    name = "parquet"
    summary = "parquet files; a document is --text-field of a row"
    suffixes = (".parquet",)

    def parts(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """A part is a row group. Raises UsageError when the column is not there or is no text."""
        for file in files:
            if file.num_bytes == 0:
                yield Part(file.path, 0)
                continue
            try:
                metadata = pq.read_metadata(file.path)
            except (pa.ArrowException, OSError):
                yield Part(file.path, file.num_bytes)  # read will record it
                continue
            column = _column_of(file.path, metadata, options.text_field)
            for group in range(metadata.num_row_groups):
                weight = metadata.row_group(group).column(column).total_uncompressed_size
                yield Part(file.path, weight, group, group + 1)

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """See Source.read."""
        pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps tens of MiB for later
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
    if not any(is_kind(kind) for is_kind in _TEXT):
        raise UsageError(f"{path}: column {field!r} is {kind}, not text; choose --text-field")
    # the columns of the metadata are leaves; a top-level text column is one of them
    names = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    return names.index(field)


def _rows(part: Part, field: str, recorder: Recorder) -> Iterator[RawBatch]:
    with pq.ParquetFile(part.path, buffer_size=1 << 20, pre_buffer=False) as file:
        groups = range(part.start, part.stop or part.start + 1)
        first = sum(file.metadata.row_group(g).num_rows for g in range(part.start))
        rows = sum(file.metadata.row_group(g).num_rows for g in groups)
        if rows == 0:
            return
        size = min(rows, BATCH_BYTES * rows // max(part.weight, 1))
        size = min(size, MOST_REPEATED // max(_longest_in_dictionary(part, field), 1))
        batches = file.iter_batches(
            max(size, 1), row_groups=list(groups), columns=[field], use_threads=False
        )
        for column in _joined(batch.column(0) for batch in batches):
            yield from _documents(column, part.path, first, recorder)
            first += len(column)


def _joined(columns: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Small neighbours put together, of about BATCH_BYTES."""
    arrays: list[pa.Array] = []
    size = 0
    for column in columns:
        arrays.append(column)
        size += column.nbytes
        if size >= BATCH_BYTES * 3 // 4:
            yield pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
            arrays, size = [], 0
    if arrays:
        yield pa.concat_arrays(arrays)


def _longest_in_dictionary(part: Part, field: str) -> int:
    """Bytes of the longest text that the part's pages may repeat by number, or 0.

    What is not in the dictionary takes its own room in the file, which bounds it.
    """
    with pq.ParquetFile(
        part.path, read_dictionary=[field], buffer_size=1 << 20, pre_buffer=False
    ) as file:
        group = file.metadata.row_group(part.start)
        if not group.column(_column_of(part.path, file.metadata, field)).has_dictionary_page:
            return 0
        rows = file.iter_batches(1, row_groups=[part.start], columns=[field], use_threads=False)
        texts = next(rows).column(0)
        if not isinstance(texts, pa.DictionaryArray):  # of nulls
            return 0
        _, offsets = _buffers(texts.dictionary)
        return int(np.diff(offsets).max(initial=0))


def _buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(bytes uint8, (n + 1,) int64 offsets in them) of texts without nulls."""
    values = texts.cast(pa.large_binary())
    if len(values) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = values.buffers()
    offsets = np.frombuffer(offsets, np.int64)[values.offset :][: len(values) + 1]
    return np.frombuffer(data or b"", np.uint8), offsets


def _is_not_null(column: pa.Array) -> np.ndarray:
    """(rows,) bool. Not by to_numpy, which imports pandas: 25 MiB and 0.1 s."""
    valid = column.is_valid()
    bits = np.frombuffer(valid.buffers()[1], np.uint8)
    bits = np.unpackbits(bits, bitorder="little")[valid.offset :]
    return bits[: len(valid)].astype(np.bool_)


def _documents(column: pa.Array, path: str, first: int, recorder: Recorder) -> Iterator[RawBatch]:
    """A column of texts as batches that share its bytes; nulls are recorded.

    A batch has BATCH_BYTES of text at most, or one document. first: the row number of the column's
    first value, for messages.
    """
    has_text = _is_not_null(column)
    for row in np.flatnonzero(~has_text).tolist():
        recorder.drop("missing_text_field", path, first + row)
    places = np.flatnonzero(has_text) + first
    if isinstance(column, pa.DictionaryArray):  # a type of the writer's
        column = column.dictionary_decode()
    # Arrow cannot take the nulls out of views
    data, offsets = _buffers(column.cast(pa.large_binary()).drop_null())
    starts, ends = offsets[:-1], offsets[1:]
    at = 0
    while at < len(ends):
        stop = max(at + 1, int(np.searchsorted(ends, starts[at] + BATCH_BYTES, "right")))
        yield RawBatch(data, starts[at:stop], ends[at:stop], path, places[at:stop])
        at = stop
