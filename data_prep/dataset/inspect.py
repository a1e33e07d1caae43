"""Show a dataset: documents as text with sentence marks, and a summary with lengths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from data_prep.errors import DatasetError
from data_prep.format.manifest import SPLITS
from data_prep.format.shard import Dataset, Shard, Split, open_dataset

SENTENCE_MARK = "⏎"
EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def open_tokenizer(dataset: Dataset) -> Tokenizer:
    """The dataset's own tokenizer. Raises DatasetError when it has none."""
    path = dataset.tokenizer_path / "tokenizer.json"
    if not path.is_file():
        raise DatasetError(f"{path} is missing: this dataset has no tokenizer to show text with")
    return Tokenizer.from_file(str(path))


def show_documents(dataset: Dataset, split: Split, first: int, count: int) -> Iterator[str]:
    """Lines for documents [first, first + count) of a split."""
    tokenizer = open_tokenizer(dataset)
    number = 0
    for shard in dataset.shards(split):
        size = len(shard.document_ends)
        for at in range(max(first - number, 0), min(first + count - number, size)):
            yield f"--- {split} document {number + at} ({shard.name})"
            ids = [s.tolist() for s in _sentences(shard, at)]
            for text in tokenizer.decode_batch(ids, skip_special_tokens=False):
                yield text.replace("\n", "\\n") + SENTENCE_MARK
        number += size


def _sentences(shard: Shard, document: int) -> Iterator[np.ndarray]:
    first = int(shard.document_ends[document - 1]) if document else 0
    start = int(shard.sentence_ends[first - 1]) if first else 0
    for end in shard.sentence_ends[first : int(shard.document_ends[document])].tolist():
        yield shard.tokens[start:end]
        start = end


def summary(path: str | Path) -> Iterator[str]:
    """Lines about a dataset: sizes by split, how it was made, counters, length histograms."""
    dataset = open_dataset(path)
    manifest = dataset.manifest
    tokenizer = manifest.tokenizer
    yield f"dataset      {dataset.path}  fingerprint {manifest.fingerprint[:16]}"
    yield f"tokenizer    {tokenizer.name} ({tokenizer.kind}), {manifest.vocab_size} tokens,"
    end = tokenizer.end_of_document_id
    yield f"             stored as {manifest.tokens_dtype}; end of document {end}"
    segmenter, source = manifest.segmenter, manifest.source
    yield f"made from    {source.get('name')}; segmenter {segmenter.get('name')}"
    for split in SPLITS:
        shards = sum(s.split == split for s in manifest.shards)
        yield (
            f"{split:12s} {manifest.num_documents[split]:,} documents,"
            f" {manifest.num_sentences[split]:,} sentences, {manifest.num_tokens[split]:,} tokens"
            f" in {shards} shards"
        )
    for name, count in manifest.counters.items():
        yield f"  {name} {count:,}"
    yield from _histogram("sentence lengths (tokens)", dataset, "sentence_ends")
    yield from _histogram("document lengths (sentences)", dataset, "document_ends")


def _histogram(title: str, dataset: Dataset, array: str) -> Iterator[str]:
    counts = np.zeros(len(EDGES) + 1, np.int64)
    for split in SPLITS:
        for shard in dataset.shards(split):
            lengths = np.diff(getattr(shard, array)[:].astype(np.int64), prepend=0)
            counts += np.bincount(np.searchsorted(EDGES, lengths), minlength=len(counts))
    yield title
    total = max(int(counts.sum()), 1)
    for place, count in enumerate(counts.tolist()):
        low = EDGES[place - 1] + 1 if place else 1
        high = str(EDGES[place]) if place < len(EDGES) else ""
        if count:
            bar = "#" * round(40 * count / total)
            yield f"  {low:>5}-{high:<5} {count:>12,} {100 * count / total:5.1f}% {bar}"
