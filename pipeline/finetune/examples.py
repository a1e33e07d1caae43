"""Examples to fine-tune on, as a dataset directory: a document an example, and a label each."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from data_prep.files import write_atomically
from data_prep.format.shard import Dataset, open_dataset, write_dataset
from data_prep.tokenizer.load import LoadedTokenizer
from gpst.batch import ContextBatch
from gpst.chart.atoms import AtomRule
from gpst.model.classifier import ExampleCounts, LabelledBatch
from pipeline.data.context_table import ROW, Split
from pipeline.data.order import Mixture
from pipeline.data.source import ContextSource, Part
from pipeline.errors import DataError
from pipeline.finetune.text import Sentences

LABELS, ATOMS = "labels.npy", "atoms.npy"
RECORD = "examples.json"
_SHARD_EXAMPLES = 20_000


@dataclass(frozen=True)
class Example:
    """A text to train on; the end-of-document token is added when it is written."""

    sentences: Sentences
    label: int | None = None
    inside_word: Sequence[Sequence[bool]] | None = None
    """Of each sentence, whether the boundary after a token lies inside an atom."""


def prepare_examples(
    folder: Path,
    key: str,
    splits: dict[Split, Iterable[Example]],
    tokenizer: LoadedTokenizer,
    counters: Mapping[str, int],
) -> dict[str, Any]:
    """Writes the examples as a dataset, unless they exist already.

    Args:
        key: says what the examples are made from; another key makes them anew.
        splits: training examples, and held-out ones for their losses where the task wants them.
        counters: what happened to them, known once they have been read.
    Returns:
        the record of examples.json.
    Raises:
        DataError: there are no training examples, or the folder cannot be written.
    """
    record = read_record(folder)
    if record is not None and record["key"] == key:
        return record
    made = folder.with_name(f".{folder.name}-unfinished")
    labels: list[int | None] = []
    atoms: list[bool] = []

    def documents(split: Split) -> Iterator[Sentences]:
        for example in splits.get(split, ()):
            if split == "train":
                labels.append(example.label)
                if example.inside_word is not None:
                    atoms.extend(
                        boundary for sentence in example.inside_word for boundary in sentence
                    )
                    atoms.append(False)  # the end-of-document token
            yield example.sentences

    try:
        shutil.rmtree(made, ignore_errors=True)
        write_dataset(
            made,
            documents("train"),
            vocab_size=tokenizer.vocab_size,
            validation=documents("validation"),
            shard_documents=_SHARD_EXAMPLES,
            tokenizer=tokenizer,
        )
        if not labels:
            raise DataError(f"{folder}: there are no training examples")
        if labels[0] is not None:
            np.save(made / LABELS, np.array(labels, np.int64))
        if atoms:
            np.save(made / ATOMS, np.array(atoms, bool))
        record = {"key": key, "num_examples": len(labels), "counters": dict(counters)}
        write_atomically(made / RECORD, json.dumps(record).encode())
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror})") from None
    return record


def read_record(folder: Path) -> dict[str, Any] | None:
    """What examples.json says; None without the file."""
    try:
        return json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None


class ExampleSource(ContextSource):
    """The examples of a prepared folder: each a context, with its label and atoms.

    Args:
        atoms: whether the chart's cells may cross atoms; see gpst/chart/atoms.py.
    Raises:
        DataError, data_prep.errors.DatasetError: the folder is damaged.
    """

    def __init__(
        self, folder: Path, split: Split = "train", atoms: AtomRule = "constrain_tree"
    ) -> None:
        dataset = open_dataset(folder)
        shards = dataset.shards(split)
        tables = [_table(shard, number) for number, shard in enumerate(shards)]
        table = np.concatenate(tables) if tables else np.empty(0, ROW)
        self.split = split
        self.context_tokens = int(table["num_tokens"].max()) if len(table) else 0
        self._parts = [Part(dataset, shards, table)]
        self._mixture = Mixture.from_weights([len(table)], [1.0])
        self._starts = np.array([0, len(table)])
        self.labels: NDArray[np.int64] | None = None
        if split == "train" and (folder / LABELS).is_file():
            labels = np.load(folder / LABELS)
            if labels.shape != table.shape:
                raise DataError(f"{folder}: {LABELS} does not fit the examples; remove the folder")
            self.labels = labels
        self._rule: AtomRule = atoms
        self._atoms: list[NDArray[np.bool_]] | None = None
        if split == "train" and (folder / ATOMS).is_file():
            inside_word, ends = np.load(folder / ATOMS), np.cumsum(table["num_tokens"])
            if inside_word.shape != (int(ends[-1]),):
                raise DataError(f"{folder}: {ATOMS} does not fit the examples; remove the folder")
            self._atoms = np.split(inside_word, ends[:-1])

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self._parts[0].dataset)

    def counts(self, contexts: ArrayLike) -> ExampleCounts:
        plain = super().counts(contexts)
        return ExampleCounts(plain.tokens, plain.sentences, int(np.size(contexts)))

    def batch(self, contexts: ArrayLike) -> ContextBatch:
        plain = super().batch(contexts)
        numbers = np.asarray(contexts).reshape(-1)
        if self._atoms is not None:
            inside_word = np.concatenate([self._atoms[k] for k in numbers])
            plain = replace(plain, inside_word=inside_word, atoms=self._rule)
        if self.labels is None:
            return plain
        labels = torch.from_numpy(self.labels[numbers])
        shape = plain.sentence_ends, plain.context_ends
        return LabelledBatch(
            plain.tokens, *shape, labels, inside_word=plain.inside_word, atoms=plain.atoms
        )


def _table(shard: Any, number: int) -> NDArray[np.void]:
    """A row a document."""
    ends = np.asarray(shard.document_ends).astype(np.int64)
    tokens = np.asarray(shard.sentence_ends).astype(np.int64)[ends - 1]
    rows = np.empty(len(ends), ROW)
    rows["first_sentence"] = np.concatenate(([0], ends[:-1]))
    rows["shard"] = number
    rows["num_sentences"] = np.diff(ends, prepend=0)
    rows["num_tokens"] = np.diff(tokens, prepend=0)
    return rows


def _fingerprint(dataset: Dataset) -> str:
    digest = hashlib.sha256(dataset.manifest.fingerprint.encode())
    for name in (LABELS, ATOMS):
        if (dataset.path / name).is_file():
            digest.update((dataset.path / name).read_bytes())
    return digest.hexdigest()
