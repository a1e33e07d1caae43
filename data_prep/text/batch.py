"""Batches of raw documents, and the recorder of counters and dropped records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class RawBatch:
    """Documents as bytes of the input, which may not be valid UTF-8.

    data: (n,) uint8. starts, ends: (D,) int64, the documents' ranges in ``data``, which may have
    gaps and overlap. file: where they come from. places: (D,) int64, the byte offset (or row) of
    each document in its file, for messages. files: the file of each document when they come from
    several. whole_files: each document is a whole file of a still unknown encoding.
    """

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    file: str
    places: np.ndarray
    files: tuple[str, ...] = ()
    whole_files: bool = False

    def where(self, number: int) -> tuple[str, int]:
        """(file, place) of a document."""
        return self.files[number] if self.files else self.file, int(self.places[number])

    @classmethod
    def join(
        cls,
        documents: Sequence[bytes],
        file: str,
        places: Iterable[int],
        files: Iterable[str] = (),
        whole_files: bool = False,
    ) -> RawBatch:
        """A batch of separate byte strings."""
        ends = np.cumsum([len(d) for d in documents], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
        data, places = np.frombuffer(b"".join(documents), np.uint8), np.fromiter(places, np.int64)
        return cls(data, starts, ends, file, places, tuple(files), whole_files)


SMALL_BYTES = 1 << 16  # smaller batches are merged
MERGED_BYTES = 1 << 20


def merge_small(batches: Iterable[RawBatch]) -> Iterator[RawBatch]:
    """The same documents in the same order, with small neighbouring batches merged."""
    small_batches: list[RawBatch] = []
    size = 0
    for batch in batches:
        small = len(batch.data) < SMALL_BYTES
        if small_batches and (not small or batch.whole_files != small_batches[0].whole_files):
            yield _merged(small_batches)
            small_batches, size = [], 0
        if not small:
            yield batch
            continue
        small_batches.append(batch)
        size += len(batch.data)
        if size > MERGED_BYTES:
            yield _merged(small_batches)
            small_batches, size = [], 0
    if small_batches:
        yield _merged(small_batches)


def _merged(batches: list[RawBatch]) -> RawBatch:
    if len(batches) == 1:
        return batches[0]
    counts = [len(batch.starts) for batch in batches]
    sizes = [len(batch.data) for batch in batches]
    shift = np.repeat(np.cumsum([0, *sizes[:-1]]), counts)
    return RawBatch(
        np.concatenate([batch.data for batch in batches]),
        np.concatenate([batch.starts for batch in batches]) + shift,
        np.concatenate([batch.ends for batch in batches]) + shift,
        batches[0].file,
        np.concatenate([batch.places for batch in batches]),
        tuple(batch.where(number)[0] for batch in batches for number in range(len(batch.starts))),
        batches[0].whole_files,
    )


@dataclass
class Recorder:
    """Counters by reason, the dropped records and what was not UTF-8, of one unit."""

    counters: Counter[str] = field(default_factory=Counter)
    quarantine: list[dict[str, str | int]] = field(default_factory=list)
    decoded: list[dict[str, str | int]] = field(default_factory=list)

    def count(self, reason: str, amount: int = 1) -> None:
        """Add to a counter."""
        if amount:
            self.counters[reason] += int(amount)

    def drop(self, reason: str, file: str, place: int, detail: str = "") -> None:
        """Count a dropped record, and store where it is."""
        self.counters[f"dropped/{reason}"] += 1
        entry: dict[str, str | int] = {"reason": reason, "file": file, "offset": int(place)}
        if detail:
            entry["detail"] = detail[:200]
        self.quarantine.append(entry)

    def file_decoded(self, file: str, place: int, encoding: str) -> None:
        """Count and name a file, or one at ``place`` in an archive, that is not UTF-8."""
        self.counters[f"files_decoded/{encoding}"] += 1
        self.decoded.append({"file": file, "offset": int(place), "encoding": encoding})

    def bytes_replaced(self, file: str, place: int, amount: int) -> None:
        """Count and name a document with U+FFFD in ``amount`` places that did not fit."""
        self.counters["bad_utf8_replaced"] += amount
        self.counters["documents_with_bad_utf8"] += 1
        self.decoded.append({"file": file, "offset": int(place), "replaced": amount})

    def renamed(self, file: str, origin: str, base: int) -> _Renamed:
        """A recorder into the same lists that writes ``origin`` in place of ``file``."""
        return _Renamed(self.counters, self.quarantine, self.decoded, file, origin, base)


@dataclass
class _Renamed(Recorder):
    """Shares the lists of another recorder; adds ``base`` to places in ``file``."""

    file: str = ""
    origin: str = ""
    base: int = 0

    def drop(self, reason: str, file: str, place: int, detail: str = "") -> None:
        """See Recorder.drop."""
        if file == self.file:
            file, place = self.origin, place + self.base
        super().drop(reason, file, place, detail)
