"""Rows of data sets in the layouts of the Hugging Face hub: parquet, JSON lines, or by name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet

from data_prep.packages import PackageError, import_package
from pipeline.errors import ConfigError, DataError

T = TypeVar("T")

BY_NAME = "datasets:"
"""Before the name of a data set that the library `datasets` is to load."""
_SUFFIXES = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz")


def find_split(path: Path, split: str, required: bool = True) -> list[Path]:
    """The files of a split: `SPLIT.parquet`, `SPLIT-00000-of-00003.parquet`, `SPLIT.jsonl`, ...

    They lie in the folder or in its sub-folder `data`.

    Raises:
        ConfigError: there are none, but they are required; names what was looked for.
    """
    for folder in (path, path / "data"):
        for suffix in _SUFFIXES:
            exact = folder / (split + suffix)
            files = [exact] if exact.is_file() else sorted(folder.glob(f"{split}-*{suffix}"))
            if files:
                return files
    if not required:
        return []
    raise ConfigError(
        f"{path}: has no {split}.parquet, {split}-*.parquet or {split}.jsonl; give the folder of "
        f"the data set, or {BY_NAME}NAME for one that the library datasets loads"
    )


def read_rows(files: Sequence[Path], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of the files in order, with the wanted columns.

    Raises:
        DataError: a file is damaged, or has not the columns; names file, row and column.
    """
    for file in files:
        rows = _parquet(file, columns) if file.suffix == ".parquet" else _json_lines(file, columns)
        yield from rows


def _parquet(file: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    try:
        table = pyarrow.parquet.ParquetFile(file)
        _check_columns(str(file), columns, table.schema_arrow.names)
        for batch in table.iter_batches(batch_size=4096, columns=list(columns)):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        line = " ".join(str(error).split())[:200]
        raise DataError(f"{file}: is no whole parquet file: {line}") from None


def _json_lines(file: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError:
                    raise DataError(f"{file}:{number}: the line is no JSON object") from None
                if not isinstance(row, dict):
                    raise DataError(f"{file}:{number}: the line is no JSON object")
                _check_columns(f"{file}:{number}", columns, list(row))
                yield {name: row[name] for name in columns}
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{file}: cannot be read ({reason})") from None


def _check_columns(place: str, wanted: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            f"{place}: has no {missing[0]!r}; there are {', '.join(names)}; expected are "
            f"{', '.join(wanted)}"
        )


def load_by_name(
    path: str, subset: str | None, split: str, columns: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The rows of a split of a data set that the library `datasets` loads.

    Args:
        path: "datasets:NAME".
    Raises:
        ConfigError: it cannot be loaded.
        DataError: it has not the columns.
    """
    try:
        datasets: Any = import_package("datasets", "load_dataset")
    except PackageError as error:
        raise ConfigError(f"{path} needs the package datasets, which {error}") from None
    name = path.removeprefix(BY_NAME)
    try:
        rows = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the library raises whatever its parts raise
        line = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path}, {split}: cannot be loaded: {line}") from None
    _check_columns(f"{path}, {split}", columns, rows.column_names)
    for row in rows.select_columns(list(columns)):
        yield dict(row)
