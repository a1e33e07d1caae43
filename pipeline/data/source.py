"""Batches of contexts, read from the shards of datasets.

The table of contexts (context_table.py) makes the counts of any batch, another rank's included, a
look-up.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer

from data_prep.format.shard import Dataset, Shard, open_dataset
from gpst.batch import BatchCounts, ContextBatch
from pipeline.config.sections import DataConfig
from pipeline.data.context_table import TABLE_VERSION, Split, Table, context_table
from pipeline.data.order import Mixture
from pipeline.errors import ConfigError, DataError


@dataclass(frozen=True)
class Part:
    """One dataset of a source."""

    dataset: Dataset
    shards: list[Shard]
    table: Table


class ContextSource:
    """The contexts of a split of one or several datasets, numbered through.

    Args:
        datasets: opened datasets with one tokenizer.
        split: "train" or "validation".
        context_tokens: most tokens in a context.
        weights: share of each dataset in `sample`, by default equal.

    Raises:
        DataError: a dataset has no contexts in the split or a sentence that does not fit.
        ConfigError: the datasets' tokenizers differ, or a weight cannot be met.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        split: Split,
        context_tokens: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        _check_same_tokenizer(datasets)
        self.split: Split = split
        self.context_tokens = context_tokens
        self._parts = [
            Part(d, d.shards(split), context_table(d, split, context_tokens)) for d in datasets
        ]
        for part in self._parts:
            if not len(part.table):
                raise DataError(
                    f"dataset {part.dataset.path}: has no {split} documents; build it with more "
                    "documents (--split-blank-lines makes one of each paragraph) or another "
                    "--validation-fraction, or do without (evaluate.every_steps=null)"
                )
        sizes = [len(part.table) for part in self._parts]
        self._mixture = Mixture.from_weights(sizes, weights or [1.0] * len(sizes))
        self._starts = np.cumsum([0, *sizes])

    @property
    def num_contexts(self) -> int:
        """Contexts in the split, over all datasets."""
        return int(self._starts[-1])

    @property
    def num_tokens(self) -> int:
        """Tokens in the split, over all datasets."""
        return sum(part.dataset.manifest.num_tokens[self.split] for part in self._parts)

    @property
    def datasets(self) -> list[Dataset]:
        """The datasets, in the order of their numbers."""
        return [part.dataset for part in self._parts]

    @property
    def fingerprint(self) -> str:
        """Identifies the data and its order (64 hex digits): equal fingerprints, equal batches."""
        parts = [part.dataset.manifest.fingerprint for part in self._parts]
        facts = (TABLE_VERSION, self.split, self.context_tokens, parts, self._mixture.shares)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def sample(self, seed: int, k: ArrayLike) -> NDArray[np.int64]:
        """Context numbers of the k-th samples of a run (pipeline/data/order.py), shaped as `k`."""
        dataset, index = self._mixture.sample(seed, k)
        return self._starts[dataset] + index

    def counts(self, contexts: ArrayLike) -> BatchCounts:
        """Exact counts of the contexts, without reading them."""
        rows = [part.table[i] for part, i in map(self._locate, self._checked(contexts))]
        return BatchCounts(
            tokens=sum(int(row["num_tokens"]) for row in rows),
            sentences=sum(int(row["num_sentences"]) for row in rows),
        )

    def batch(self, contexts: ArrayLike) -> ContextBatch:
        """The contexts, in the order of `contexts`.

        Raises:
            DataError: a token is outside the vocabulary (a damaged shard).
            data_prep.errors.DatasetError: a shard was cut short since it was opened.
        """
        tokens, sentence_ends, context_ends = [], [], []
        num_tokens = num_sentences = 0
        for context in self._checked(contexts):
            part, i = self._locate(context)
            row = part.table[i]
            first, count = int(row["first_sentence"]), int(row["num_sentences"])
            shard = part.shards[row["shard"]]
            ends = shard.sentence_ends[max(first - 1, 0) : first + count].astype(np.int64)
            start, ends = (int(ends[0]), ends[1:]) if first else (0, ends)
            ids = shard.tokens[start : int(ends[-1])].astype(np.int64)
            _check_vocabulary(part.dataset, shard, ids, start)
            tokens.append(ids)
            sentence_ends.append(ends - start + num_tokens)
            num_tokens += len(ids)
            num_sentences += count
            context_ends.append(num_sentences)
        return ContextBatch(
            tokens=torch.from_numpy(np.concatenate(tokens)),
            sentence_ends=np.concatenate(sentence_ends),
            context_ends=np.array(context_ends, np.int64),
        )

    def _checked(self, contexts: ArrayLike) -> list[int]:
        numbers = np.asarray(contexts, np.int64).reshape(-1)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.num_contexts:
            raise IndexError(f"contexts {numbers.min()}..{numbers.max()} of {self.num_contexts}")
        return numbers.tolist()

    def _locate(self, context: int) -> tuple[Part, int]:
        """The part with a context, and the context's row in its table."""
        number = int(np.searchsorted(self._starts, context, side="right")) - 1
        return self._parts[number], context - int(self._starts[number])


def _check_same_tokenizer(datasets: Sequence[Dataset]) -> None:
    first = datasets[0]
    for other in datasets[1:]:
        if other.manifest.tokenizer != first.manifest.tokenizer:
            raise ConfigError(
                f"data.datasets: {other.path} and {first.path} have different tokenizers "
                f"({other.manifest.tokenizer.name}, {first.manifest.tokenizer.name}); build both "
                "with one tokenizer"
            )


def tokens_differ(one: Path, other: Path) -> bool:
    """Whether the tokenizers in two folders have other tokens; False where either is missing.

    Raises:
        DataError: one of them cannot be read.
    """
    vocabularies = []
    for file in (one / "tokenizer.json", other / "tokenizer.json"):
        if not file.is_file():
            return False
        try:
            vocabularies.append(Tokenizer.from_file(str(file)).get_vocab())
        except Exception as error:  # tokenizers raises plain Exception on a broken file
            raise DataError(f"{file}: {error}; copy it again") from None
    return vocabularies[0] != vocabularies[1]


def _check_vocabulary(dataset: Dataset, shard: Shard, ids: NDArray[np.int64], start: int) -> None:
    worst = int(ids.argmax())
    if ids[worst] >= dataset.manifest.vocab_size:
        raise DataError(
            f"{dataset.path}, shard {shard.name}: token {start + worst} is {ids[worst]}, outside "
            f"the vocabulary of {dataset.manifest.vocab_size}; run python -m data_prep verify"
        )


def open_datasets(config: DataConfig) -> list[Dataset]:
    """Opens the datasets that a config names.

    Raises:
        ConfigError: a directory does not exist.
        data_prep.errors.DatasetError: it is not a whole dataset.
    """
    for source in config.sources:
        if not Path(source.path).is_dir():
            field = "data.path" if config.path is not None else "data.datasets"
            raise ConfigError(
                f"{field}: no dataset directory {source.path}; make it with "
                "python -m data_prep build"
            )
    return [open_dataset(source.path) for source in config.sources]


def open_source(config: DataConfig, split: Split) -> ContextSource:
    """The contexts of a split of the config's datasets; errors as in its parts."""
    weights = [source.weight for source in config.sources]
    return ContextSource(open_datasets(config), split, config.context_tokens, weights)
