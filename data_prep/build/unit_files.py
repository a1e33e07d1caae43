"""The files of a unit under the work folder: what each holds, its name, and their writer."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data_prep.build.encode import TokenBatch
from data_prep.build.job import Job
from data_prep.files import write_atomically
from data_prep.format.manifest import RECORDS, SPLITS
from data_prep.text.batch import RawBatch, Recorder

# a document of a unit: the hash of its text and its size
DOCUMENT = np.dtype([("hash", "<u8", (2,)), ("sentences", "<u8"), ("tokens", "<u8")])
STREAMS = ("tokens", "sentences", "documents")
# where a document of a deduplicated build came from: its file, by number in the unit, and place
PLACES, PLACE = "places", np.dtype([("file", "<u4"), ("place", "<i8")])


def unit_file(job: Job, key: str, split: str, stream: str) -> Path:
    """The file of one stream of a unit: raw little-endian values, no header."""
    return job.work / "units" / f"{key}.{split}.{stream}"


def done_file(job: Job, key: str) -> Path:
    """The record of a finished unit."""
    return job.work / "units" / f"{key}.done"


def record_file(job: Job, key: str, kind: str) -> Path:
    """The records of a unit of one of RECORDS, a JSON object a line; absent when there are none."""
    return job.work / "units" / f"{key}.{kind}"


def write_records(job: Job, key: str, recorder: Recorder) -> None:
    """Write the files of RECORDS of a unit."""
    for kind, entries in zip(RECORDS, (recorder.quarantine, recorder.decoded), strict=True):
        if entries:
            write_atomically(record_file(job, key, kind), record_lines(entries))


def record_lines(entries: Iterable[Mapping[str, str | int]]) -> bytes:
    """Records as lines of JSON; bytes of a file's name that are no UTF-8 are escaped, and kept."""
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    return "".join(lines).encode(errors="backslashreplace")


def names_file(job: Job, key: str) -> Path:
    """The file names that PLACES refers to by number, a JSON list; with --deduplicate only."""
    return job.work / "units" / f"{key}.names"


class UnitWriter:
    """Writes the streams of a unit, each under a temporary name until ``close``."""

    def __init__(self, job: Job, key: str, dtype: np.dtype):
        self._job, self._key = job, key
        self._dtype = dtype.newbyteorder("<")
        self._files: dict[tuple[str, str], BinaryIO] = {}
        self._sizes: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        self._names: dict[str, int] = {}

    def _temporary(self, split: str, stream: str) -> Path:
        path = unit_file(self._job, self._key, split, stream)
        return path.with_name(f"{path.name}.{os.getpid()}.tmp")

    def places_of(self, raw: RawBatch, numbers: np.ndarray) -> np.ndarray:
        """(D,) PLACE of some documents."""
        places = np.empty(len(numbers), PLACE)
        for order, number in enumerate(numbers.tolist()):
            name, place = raw.where(number)
            places[order] = self._names.setdefault(name, len(self._names)), place
        return places

    def write(
        self, split: str, batch: TokenBatch, hashes: np.ndarray, places: np.ndarray | None
    ) -> None:
        """Append the chosen documents of a batch."""
        chosen = batch.document_sentences > 0
        documents = np.empty(int(chosen.sum()), DOCUMENT)
        documents["hash"] = hashes[chosen]
        documents["sentences"] = batch.document_sentences[chosen]
        documents["tokens"] = batch.document_tokens[chosen]
        values = {
            "tokens": batch.tokens.astype(self._dtype, copy=False),
            "sentences": np.diff(batch.sentence_ends, prepend=0).astype("<u4"),
            "documents": documents,
        }
        if places is not None:
            values[PLACES] = places[chosen]
        for stream, array in values.items():
            key = (split, stream)
            if key not in self._files:
                self._files[key] = open(self._temporary(*key), "wb")  # noqa: SIM115
            self._files[key].write(array.view(np.uint8).data)
            self._sizes[split][stream] += len(array)

    def close(self) -> dict[str, dict[str, int]]:
        """Rename every file to its final name; returns the sizes by split."""
        for (split, stream), file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            file.close()
            path = unit_file(self._job, self._key, split, stream)
            os.replace(self._temporary(split, stream), path)
        if self._names:
            write_atomically(
                names_file(self._job, self._key), json.dumps(list(self._names)).encode()
            )
        return {split: dict(sizes) for split, sizes in self._sizes.items() if sizes}

    def abort(self) -> None:
        """Delete the files written so far."""
        for key, file in self._files.items():
            file.close()
            self._temporary(*key).unlink(missing_ok=True)
