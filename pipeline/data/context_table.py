"""The table of contexts: the place of each packed run of whole sentences in the shards.

Computed once per (dataset, split, context_tokens) in compiled code and cached by atomic rename.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DatasetError
from data_prep.format.shard import Dataset, Shard
from data_prep.format.stored_array import StoredArray
from gpst.jit.compiled import compiled
from pipeline.errors import DataError

Split = Literal["train", "validation"]

TABLE_VERSION = 1
ROW = np.dtype(
    [
        ("first_sentence", "<i8"),  # in the shard
        ("shard", "<i4"),  # number in Dataset.shards(split)
        ("num_sentences", "<i4"),
        ("num_tokens", "<i4"),
    ]
)
Table = NDArray[np.void] | StoredArray
_FITS, _EMPTY, _TOO_LONG = 0, 1, 2


@compiled
def _pack(
    sentence_ends: NDArray[np.int64], context_tokens: int, firsts: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Greedy packing: a context ends before the first sentence that does not fit any more.

    Writes the first sentence of every context to `firsts`.

    Returns:
        (number of contexts, _FITS, -1) or (0, _EMPTY or _TOO_LONG, the offending sentence).
    """
    num_contexts = 0
    context_start = sentence_start = 0
    for sentence in range(sentence_ends.size):
        end = sentence_ends[sentence]
        if end <= sentence_start:
            return 0, _EMPTY, sentence
        if end - sentence_start > context_tokens:
            return 0, _TOO_LONG, sentence
        if sentence == 0 or end - context_start > context_tokens:
            firsts[num_contexts] = sentence
            num_contexts += 1
            context_start = sentence_start
        sentence_start = end
    return num_contexts, _FITS, -1


def pack_shard(shard: Shard, number: int, context_tokens: int) -> NDArray[np.void]:
    """The contexts of one shard, as rows of a table.

    Raises:
        DataError: a sentence is empty or longer than a context; names the shard and the sentence.
    """
    ends = np.asarray(shard.sentence_ends).view(np.int64)
    if ends.size == 0:
        return np.empty(0, ROW)
    if ends[-1] != shard.tokens.size:
        raise DataError(
            f"shard {shard.name}: its last sentence ends at token {ends[-1]} of "
            f"{shard.tokens.size}; the shard is damaged: run python -m data_prep verify"
        )
    # Two neighbouring contexts together have more than context_tokens, which bounds their number.
    firsts = np.empty(2 * int(ends[-1]) // context_tokens + 2, np.int64)
    num_contexts, status, sentence = _pack(ends, context_tokens, firsts)
    if status != _FITS:
        raise _packing_error(shard, ends, status, sentence, context_tokens)
    lasts = np.append(firsts[1:num_contexts], ends.size) - 1
    rows = np.empty(num_contexts, ROW)
    rows["first_sentence"] = firsts[:num_contexts]
    rows["shard"] = number
    rows["num_sentences"] = lasts + 1 - firsts[:num_contexts]
    rows["num_tokens"] = np.diff(ends[lasts], prepend=0)
    return rows


def _packing_error(
    shard: Shard, ends: NDArray[np.int64], status: int, sentence: int, context_tokens: int
) -> DataError:
    where = f"shard {shard.name}, sentence {sentence}"
    if status == _EMPTY:
        return DataError(
            f"{where}: ends at token {ends[sentence]}, no later than it starts; the shard is "
            "damaged: run python -m data_prep verify"
        )
    length = ends[sentence] - (ends[sentence - 1] if sentence else 0)
    return DataError(
        f"{where}: has {length} tokens, more than data.context_tokens {context_tokens}; raise it, "
        "or build the dataset with a lower --max-sentence-tokens"
    )


def context_table(dataset: Dataset, split: Split, context_tokens: int) -> Table:
    """All contexts of a split: (num_contexts,) rows of dtype ROW, read from the cache if any.

    The cache is the dataset's folder `contexts`, or (read-only) the user's cache folder; where
    neither can be written, the table stays in memory.
    """
    manifest = dataset.manifest
    name = f"v{TABLE_VERSION}-{split}-{context_tokens}-{manifest.fingerprint[:16]}.npy"
    for folder in _cache_folders(dataset.path):
        table = _load_table(folder / name, manifest.num_tokens[split])
        if table is not None:
            return table
    shards = dataset.shards(split)
    parts = [pack_shard(shard, i, context_tokens) for i, shard in enumerate(shards)]
    table = np.concatenate(parts) if parts else np.empty(0, ROW)
    for folder in _cache_folders(dataset.path):
        if _store_table(folder / name, table):
            break
    return table


def _cache_folders(dataset: Path) -> Iterator[Path]:
    yield dataset / "contexts"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield Path(cache) / "gpst" / "contexts"


def _load_table(path: Path, num_tokens: int) -> StoredArray | None:
    try:
        with open(path, "rb") as file:
            np.lib.format.read_magic(file)
            (count, *_), _, dtype = np.lib.format.read_array_header_1_0(file)
            offset = file.tell()
        table = StoredArray(path, ROW, offset, count, "start again: it is made anew")
        if dtype != ROW:
            return None
        total = sum(int(block["num_tokens"].sum(dtype=np.int64)) for block in table.blocks())
    except (OSError, ValueError, EOFError, DatasetError):
        return None
    return table if total == num_tokens else None


def _store_table(path: Path, table: NDArray[np.void]) -> bool:
    """Writes the table by atomic rename (several ranks may do so at once); False if it cannot."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, table, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True
