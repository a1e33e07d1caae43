"""The manifest of a dataset directory: what is in it, how it was made, its files' hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep.errors import DatasetError, UsageError
from data_prep.files import write_atomically

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
SPLITS = ("train", "validation")
SHARD_PREFIX = {"train": "shard", "validation": "validation"}
ARRAYS = ("tokens", "sentence_ends", "document_ends")
# files NAME.jsonl beside the manifest: what was left out, and what was not UTF-8
RECORDS = ("quarantine", "decoded")


@dataclass(frozen=True)
class FileRecord:
    """A file of a shard: its size in bytes and the sha256 of its contents (hex)."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardRecord:
    """A shard: three arrays in three files. ``files`` maps an array's name (ARRAYS) to its file."""

    name: str
    split: str
    num_tokens: int
    num_sentences: int
    num_documents: int
    files: Mapping[str, FileRecord]

    def file_name(self, array: str) -> str:
        """The file of one array, e.g. ``shard-00000.tokens.npy``."""
        return f"{self.name}.{array}.npy"

    def count(self, array: str) -> int:
        """The number of elements of one array."""
        counts = (self.num_tokens, self.num_sentences, self.num_documents)
        return counts[ARRAYS.index(array)]


@dataclass(frozen=True)
class TokenizerRecord:
    """The tokenizer of the dataset; its files lie in ``tokenizer/``.

    ``kind`` is ``byte_bpe``, ``wordpiece`` or ``other``. ``bos_id`` starts a sequence in the model;
    ``end_of_document_id`` is the single token of the sentence that ends a document.
    """

    name: str
    kind: str
    sha256: str
    bos_id: int
    end_of_document_id: int
    engine: str = "tokenizers"


@dataclass(frozen=True)
class Manifest:
    """Everything about a dataset; the ``num_*`` mappings are keyed by split."""

    vocab_size: int
    tokens_dtype: str
    tokenizer: TokenizerRecord
    shards: tuple[ShardRecord, ...]
    segmenter: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    max_sentence_tokens: int | None = None
    format_version: int = FORMAT_VERSION

    def _total(self, attribute: str) -> dict[str, int]:
        return {
            split: sum(getattr(s, attribute) for s in self.shards if s.split == split)
            for split in SPLITS
        }

    @property
    def num_tokens(self) -> dict[str, int]:
        """Tokens by split, end-of-document tokens included."""
        return self._total("num_tokens")

    @property
    def num_sentences(self) -> dict[str, int]:
        """Sentences by split; the end-of-document token is a sentence of its own."""
        return self._total("num_sentences")

    @property
    def num_documents(self) -> dict[str, int]:
        """Documents by split."""
        return self._total("num_documents")

    @property
    def fingerprint(self) -> str:
        """Identifies the data: a hash over the shards' names and hashes (64 hex digits)."""
        digest = hashlib.sha256()
        for shard in self.shards:
            for array in ARRAYS:
                digest.update(f"{shard.file_name(array)} {shard.files[array].sha256}\n".encode())
        return digest.hexdigest()

    def to_json(self) -> str:
        """The text of ``manifest.json``; totals and fingerprint are written for readers."""
        totals = {
            "fingerprint": self.fingerprint,
            "num_tokens": self.num_tokens,
            "num_sentences": self.num_sentences,
            "num_documents": self.num_documents,
        }
        return json.dumps({**asdict(self), **totals}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Manifest:
        """Build from parsed JSON. Raises KeyError, TypeError or ValueError on a wrong structure."""
        shards = tuple(
            ShardRecord(**{**s, "files": {a: FileRecord(**s["files"][a]) for a in ARRAYS}})
            for s in values["shards"]
        )
        names = set(cls.__dataclass_fields__) - {"shards", "tokenizer"}
        fields = {name: values[name] for name in names}
        return cls(shards=shards, tokenizer=TokenizerRecord(**values["tokenizer"]), **fields)


def dtype_for(vocab_size: int) -> str:
    """The token dtype for ids 0..vocab_size-1: ``uint16`` up to 65,536 ids, else ``uint32``."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def sorted_shards(shards: Iterable[ShardRecord]) -> tuple[ShardRecord, ...]:
    """Training shards first, then held-out ones, each by name."""
    return tuple(sorted(shards, key=lambda s: (SPLITS.index(s.split), s.name)))


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` atomically: it is there whole, or not at all."""
    write_atomically(directory / MANIFEST_NAME, manifest.to_json().encode())


def read_manifest(directory: Path) -> Manifest:
    """Read ``manifest.json``.

    Raises UsageError when the directory is missing, DatasetError when the manifest is missing,
    broken, or of another format.
    """
    if not directory.is_dir():
        raise UsageError(f"dataset {directory} does not exist; run python -m data_prep build")
    path = directory / MANIFEST_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DatasetError(
            f"{directory} has no {MANIFEST_NAME}: not a dataset, or its build has not finished;"
            " run the same build command again"
        ) from None
    except PermissionError:
        raise DatasetError(f"{path} cannot be read: no permission; chmod it") from None
    except (ValueError, OSError) as error:
        raise DatasetError(f"{path} cannot be read ({error}); build the dataset again") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise DatasetError(
            f"{path}: format version {version!r}, but this program reads {FORMAT_VERSION};"
            " build the dataset again"
        )
    try:
        return Manifest.from_dict(values)
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{path}: wrong structure ({error!r}); build it again") from None
