"""What flows from a source to the shards: raw documents, counters, quarantined records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

_ZERO = np.zeros(1, np.int64)


@dataclass(frozen=True)
class RawBatch:
    """Documents as they stand in the input, bytes that may not be valid UTF-8.

    data: (n,) uint8. starts, ends: (D,) int64, the documents' ranges in ``data``, which may have
    gaps and share bytes. file: where they come from. places: (D,) int64, the byte offset (or the
    row) of each document in that file, for messages. files: of documents of several files, that of
    each. whole_files: each document is a whole file, whose encoding was not looked at.
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
    def of_file(cls, data: bytes, file: str) -> RawBatch:
        """A file as a document. A corpus may be millions of small ones."""
        end = np.array([len(data)], np.int64)
        return cls(np.frombuffer(data, np.uint8), _ZERO, end, file, _ZERO, whole_files=True)

    @classmethod
    def join(cls, documents: Iterable[bytes], file: str, places: Iterable[int]) -> RawBatch:
        """A batch of separate byte strings."""
        documents = list(documents)
        ends = np.cumsum([len(d) for d in documents], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
        data = np.frombuffer(b"".join(documents), np.uint8)
        return cls(data, starts, ends, file, np.fromiter(places, np.int64))


SMALL_BYTES = 1 << 16  # batches of less are put together
TOGETHER_BYTES = 1 << 20


def put_together(batches: Iterable[RawBatch]) -> Iterator[RawBatch]:
    """The same documents in the same order; small neighbours, as of small files, as one batch."""
    held: list[RawBatch] = []
    size = 0
    for batch in batches:
        small = len(batch.data) < SMALL_BYTES
        if held and (not small or batch.whole_files != held[0].whole_files):
            yield _joined(held)
            held, size = [], 0
        if not small:
            yield batch
            continue
        held.append(batch)
        size += len(batch.data)
        if size > TOGETHER_BYTES:
            yield _joined(held)
            held, size = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[RawBatch]) -> RawBatch:
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
    """Counters by reason, and the records that were dropped, of one unit."""

    counters: Counter[str] = field(default_factory=Counter)
    quarantine: list[dict[str, str | int]] = field(default_factory=list)

    def count(self, reason: str, amount: int = 1) -> None:
        """Add to a counter."""
        if amount:
            self.counters[reason] += int(amount)

    def drop(self, reason: str, file: str, place: int, detail: str = "") -> None:
        """Count a record that is left out, and keep where it stands."""
        self.counters[f"dropped/{reason}"] += 1
        entry: dict[str, str | int] = {"reason": reason, "file": file, "offset": int(place)}
        if detail:
            entry["detail"] = detail[:200]
        self.quarantine.append(entry)

    def renamed(self, file: str, origin: str, base: int) -> _Renamed:
        """A recorder beside this one that names ``origin`` in place of ``file``."""
        return _Renamed(self.counters, self.quarantine, file, origin, base)


@dataclass
class _Renamed(Recorder):
    """Shares the lists of another recorder; places in ``file`` are ``base`` further on."""

    file: str = ""
    origin: str = ""
    base: int = 0

    def drop(self, reason: str, file: str, place: int, detail: str = "") -> None:
        """See Recorder.drop."""
        if file == self.file:
            file, place = self.origin, place + self.base
        super().drop(reason, file, place, detail)
