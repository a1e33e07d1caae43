"""The interface of a source of documents, and the units that a corpus is cut into."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from data_prep.sources.options import SourceOptions
from data_prep.text.batch import RawBatch, Recorder

MIB = 1 << 20
Row = TypeVar("Row", bound=tuple[Any, ...])


class InputFile(NamedTuple):
    """A file of the input: its path on the command line or below it, and its size in bytes.

    modified_ns: time of the last change. ends: hash of its start and end (build/input_record.py).
    identity: from device and inode, the same for every path to the file (0: unknown).
    """

    path: str
    num_bytes: int
    modified_ns: int = 0
    ends: bytes = b""
    identity: int = 0


class DroppedRecord(NamedTuple):
    """A record that is left out; the arguments of ``Recorder.drop``."""

    reason: str
    file: str
    place: int
    detail: str = ""


class Part(NamedTuple):
    """A piece of the input that is read in one go.

    start, stop: bytes of the file, row groups, or members, as the source defines; stop None means
    the end. weight: about how many bytes of text it holds, for cutting units. streamed: a large
    file without random access, which the source can cut into ``pieces`` while it is read. origin,
    base: for a piece in a temporary file, the input file and the offset there. dropped: damage
    found while listing the parts; such a part has no documents. decoded: for a file's first piece,
    its encoding when that is not UTF-8.
    """

    path: str
    weight: int
    start: int = 0
    stop: int | None = None
    streamed: bool = False
    origin: str = ""
    base: int = 0
    dropped: DroppedRecord | None = None
    decoded: str = ""


@dataclass(frozen=True)
class SpooledFile:
    """A temporary file of a piece: its name, its bytes, and their place in the input.

    decoded: see Part.
    """

    name: str
    data: bytes
    weight: int
    origin: str
    base: int = 0
    decoded: str = ""


@dataclass(frozen=True)
class Piece:
    """A piece of a streamed part: files to read, dropped records. place: where it ends."""

    files: tuple[SpooledFile, ...]
    place: int
    dropped: tuple[DroppedRecord, ...] = ()


PACK_FROM = 16  # parts


def pack(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Rows of equal length in little memory, column by column, which is also quick to read."""
    return zlib.compress(pickle.dumps(tuple(zip(*rows, strict=True))), 1)


def unpack(make: Callable[..., Row], packed: bytes) -> Iterator[Row]:
    """The rows again, made of their values by ``make``."""
    return map(make, *pickle.loads(zlib.decompress(packed)))


class Unit:
    """Parts that one worker reads; the same for any number of workers.

    piece: the number of the piece when the unit is a piece of a streamed part. Many parts (files of
    a folder) are stored compressed: a corpus may be millions of small files.
    """

    def __init__(
        self,
        index: int,
        parts: tuple[Part, ...],
        piece: int | None = None,
        dropped: tuple[DroppedRecord, ...] = (),
    ):
        self.index, self.piece, self.dropped = index, piece, dropped
        self.weight = sum(part.weight for part in parts)
        self.streamed = any(part.streamed for part in parts)
        self._parts: tuple[Part, ...] | bytes = parts
        if len(parts) >= PACK_FROM:
            self._parts = pack(parts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in order."""
        packed = self._parts
        return packed if isinstance(packed, tuple) else tuple(unpack(Part, packed))

    @property
    def key(self) -> str:
        """The unit's name in the work folder; sorted keys are in the order of the input."""
        return f"{self.index:07d}" if self.piece is None else f"{self.index:07d}-{self.piece:07d}"


class Source(Protocol):
    """A kind of input."""

    name: str
    summary: str  # one line for ``python -m data_prep sources``
    suffixes: tuple[str, ...]  # of the files taken from a folder; () for all

    def parts(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """Cut the input into parts, in order; reads as little as possible."""
        ...

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """Read the documents of a part, in batches of a few MiB, in order."""
        ...


@runtime_checkable
class ManyFilesSource(Source, Protocol):
    """A source that reads many small files faster than one after another."""

    def read_many(
        self, parts: Iterable[Part], options: SourceOptions, recorder: Recorder
    ) -> Iterator[RawBatch]:
        """The documents of parts that are no temporary files, in order."""
        ...


def read_parts(
    source: Source, parts: Iterable[Part], options: SourceOptions, recorder: Recorder
) -> Iterator[RawBatch]:
    """The documents of parts that are no temporary files, in order."""
    if isinstance(source, ManyFilesSource):
        yield from source.read_many(parts, options, recorder)
        return
    for part in parts:
        yield from source.read(part, options, recorder)


class StreamedSource(Source, Protocol):
    """A source that has streamed parts."""

    def pieces(self, part: Part, options: SourceOptions) -> Iterator[Piece]:
        """Cut a streamed part; depends only on the part. Raises BrokenStreamError at damage."""
        ...


def group_into_units(parts: Iterable[Part], unit_bytes: int) -> list[Unit]:
    """Put neighbouring parts together until a unit weighs ``unit_bytes``."""
    units: list[Unit] = []
    unit: list[Part] = []
    weight = 0
    for part in parts:
        alone = part.streamed or (unit and unit[-1].streamed)
        if unit and (alone or weight + part.weight > unit_bytes):
            units.append(Unit(len(units), tuple(unit)))
            unit, weight = [], 0
        unit.append(part)
        weight += part.weight
    if unit:
        units.append(Unit(len(units), tuple(unit)))
    return units
