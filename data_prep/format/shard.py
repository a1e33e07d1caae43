"""Reading (and, in small, writing) dataset directories: the one owner of the shard format.

A shard is three plain .npy files, read range by range, never loaded whole::

    shard-00000.tokens.npy         (num_tokens,)     uint16 | uint32
    shard-00000.sentence_ends.npy  (num_sentences,)  uint64  exclusive, in tokens
    shard-00000.document_ends.npy  (num_documents,)  uint64  exclusive, in sentences

The last sentence of a document is the end-of-document token alone. Held-out shards are named
``validation-00000``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from data_prep.errors import DatasetError
from data_prep.files import HashingWriter, npy_header
from data_prep.format.manifest import (
    ARRAYS,
    SHARD_PREFIX,
    FileRecord,
    Manifest,
    ShardRecord,
    TokenizerRecord,
    dtype_for,
    read_manifest,
    sorted_shards,
    write_manifest,
)
from data_prep.format.stored_array import StoredArray

if TYPE_CHECKING:
    from data_prep.tokenizer.load import LoadedTokenizer

__all__ = ["Dataset", "DatasetError", "Manifest", "Shard", "open_dataset", "write_dataset"]

Split = Literal["train", "validation"]
TOKENIZER_DIRECTORY = "tokenizer"


@dataclass(frozen=True)
class Shard:
    """One shard, read as it is asked for.

    tokens: (num_tokens,) uint16 or uint32. sentence_ends: (num_sentences,) uint64, exclusive, in
    tokens. document_ends: (num_documents,) uint64, exclusive, in sentences.
    """

    name: str
    tokens: StoredArray
    sentence_ends: StoredArray
    document_ends: StoredArray


@dataclass(frozen=True)
class Dataset:
    """A dataset directory whose cheap checks have passed."""

    path: Path
    manifest: Manifest

    @property
    def tokenizer_path(self) -> Path:
        """The folder of tokenizer.json and tokenizer_config.json."""
        return self.path / TOKENIZER_DIRECTORY

    def shards(self, split: Split) -> list[Shard]:
        """The shards of one split, in order."""
        return [_open_shard(self, s) for s in self.manifest.shards if s.split == split]


def open_dataset(path: str | Path) -> Dataset:
    """Open a dataset directory and check it cheaply: presence, format version, dtypes and sizes.

    Hashes are recomputed only by ``python -m data_prep verify``. Raises DatasetError.
    """
    path = Path(path)
    manifest = read_manifest(path)
    if manifest.tokens_dtype != dtype_for(manifest.vocab_size):
        raise DatasetError(
            f"{path}: tokens_dtype {manifest.tokens_dtype} does not follow from vocab_size"
            f" {manifest.vocab_size}; build the dataset again"
        )
    dataset = Dataset(path, manifest)
    for shard in manifest.shards:
        for array in ARRAYS:
            _check_size(path / shard.file_name(array), shard.files[array].num_bytes)
        _open_shard(dataset, shard)
    return dataset


def _check_size(path: Path, num_bytes: int) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        raise DatasetError(f"{path} is missing; build the dataset again") from None
    if size != num_bytes:
        raise DatasetError(
            f"{path} has {size} bytes, the manifest says {num_bytes}; build the dataset again"
        )


def _open_shard(dataset: Dataset, record: ShardRecord) -> Shard:
    arrays = [_open_array(dataset, record, array) for array in ARRAYS]
    return Shard(record.name, *arrays)


def _open_array(dataset: Dataset, record: ShardRecord, array: str) -> StoredArray:
    path = dataset.path / record.file_name(array)
    dtype = np.dtype(dataset.manifest.tokens_dtype if array == "tokens" else "uint64")
    dtype, count = dtype.newbyteorder("<"), record.count(array)
    # the header is compared, not parsed: a damaged one is noticed, whatever it says
    header = npy_header(dtype, count)
    try:
        with open(path, "rb") as file:
            stored_header = file.read(len(header))
        if stored_header != header:
            raise DatasetError(
                f"{path}: its .npy header is not that of {dtype.name} ({count},), as the manifest"
                " says; build the dataset again"
            )
        return StoredArray(path, dtype, len(header), count, "build the dataset again")
    except PermissionError:
        raise DatasetError(f"{path} cannot be read: no permission; chmod it") from None
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error}); build it again") from None


def write_dataset(
    path: str | Path,
    documents: Iterable[Sequence[Sequence[int]]],
    *,
    vocab_size: int,
    bos_id: int = 0,
    end_of_document_id: int = 0,
    validation: Iterable[Sequence[Sequence[int]]] = (),
    shard_documents: int | None = None,
    tokenizer: LoadedTokenizer | None = None,
) -> Dataset:
    """Write a dataset from token lists (tests, toy tasks, examples to fine-tune on).

    ``documents`` and ``validation`` yield documents; a document is a list of sentences; a sentence
    is a non-empty list of ids. The end-of-document sentence is added. ``shard_documents`` limits
    the documents of a shard, and with it what is held in memory. ``tokenizer`` is kept with the
    dataset and says the ids; without one there are no tokenizer files. Corpora:
    data_prep/build/build.py.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        bos_id, end_of_document_id = tokenizer.bos_id, tokenizer.end_of_document_id
    dtype = dtype_for(vocab_size)
    records: list[ShardRecord] = []
    for split, source in (("train", documents), ("validation", validation)):
        whole = ([*map(list, document), [end_of_document_id]] for document in source)
        for number in count():
            shard = list(islice(whole, shard_documents))
            if not shard:
                break
            name = f"{SHARD_PREFIX[split]}-{number:05d}"
            records.append(_write_small(path, name, split, shard, dtype))
    record = TokenizerRecord("none", "other", "", bos_id, end_of_document_id)
    if tokenizer is not None:
        tokenizer.save(path / TOKENIZER_DIRECTORY)
        record = TokenizerRecord(
            tokenizer.name, tokenizer.kind, tokenizer.sha256, bos_id, end_of_document_id
        )
    manifest = Manifest(vocab_size, dtype, record, sorted_shards(records))
    write_manifest(path, manifest)
    return open_dataset(path)


def _write_small(
    path: Path, name: str, split: str, documents: list[list[list[int]]], dtype: str
) -> ShardRecord:
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([token for sentence in sentences for token in sentence], np.int64)
    if not all(sentences) or tokens.max() > np.iinfo(dtype).max or tokens.min() < 0:
        raise ValueError("sentences must be non-empty, and ids must lie in 0..vocab_size-1")
    values = {
        "tokens": tokens,
        "sentence_ends": np.cumsum([len(s) for s in sentences]),
        "document_ends": np.cumsum([len(d) for d in documents]),
    }
    files = {}
    for array in ARRAYS:
        kind = dtype if array == "tokens" else "uint64"
        writer = HashingWriter(path / f"{name}.{array}.npy", kind, len(values[array]))
        writer.write(values[array])
        files[array] = FileRecord(*writer.close())
    return ShardRecord(name, split, len(tokens), len(sentences), len(documents), files)
