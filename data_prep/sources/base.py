"""What a source of documents offers, and the units that a corpus is cut into."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from data_prep.errors import UsageError
from data_prep.text.batch import RawBatch, Recorder
from data_prep.text.encodings import AUTO, known_encoding

MIB = 1 << 20


@dataclass(frozen=True)
class SourceOptions:
    """Options of all sources; each reads those that concern it.

    text_field: the field (jsonl) or column (parquet, hf) of the text. split_blank_lines: blank
    lines separate documents (text). detokenize: undo ``@-@`` joins and spaces (wikitext).
    hf_split, hf_config: split and configuration of a Hugging Face dataset. encoding: of text files,
    ``auto`` or a name that Python knows; UsageError for another.
    """

    text_field: str = "text"
    split_blank_lines: bool = False
    detokenize: bool = False
    hf_split: str = "train"
    hf_config: str | None = None
    encoding: str = AUTO

    def __post_init__(self) -> None:
        known = known_encoding(self.encoding)
        if known is None:
            raise UsageError(
                f"--encoding {self.encoding!r} is not known; auto, or as cp1252, koi8-r, utf-16"
            )
        object.__setattr__(self, "encoding", known)

    def identity(self) -> dict[str, Any]:
        """By name; without what was not there in earlier versions, where it is as it was then."""
        values = asdict(self)
        if self.encoding == AUTO:
            del values["encoding"]
        return values


class InputFile(NamedTuple):
    """A file of the input: its path as given and its size in bytes.

    modified_ns: time of the last change. ends: hash of its start and end
    (build/input_record.py).
    identity: tells it from other files, whatever the path (0: unknown).
    """

    path: str
    num_bytes: int
    modified_ns: int = 0
    ends: bytes = b""
    identity: int = 0


# a record that is left out: reason, file, offset, detail
Fault = tuple[str, str, int, str]


class Part(NamedTuple):
    """A piece of the input that is read in one go.

    start, stop: bytes of the file, row groups, or members, as the source defines; stop None means
    the end. weight: about how many bytes of text it holds, for cutting units. streamed: a large
    file without random access, which the source can cut into ``pieces`` while it is read. origin,
    base: of a piece that was put into a file of its own, the input file and the offset there.
    fault: damage that was found while planning; such a part holds nothing else. decoded: of a
    file's first piece, the encoding that it was in, when that is not UTF-8.
    """

    path: str
    weight: int
    start: int = 0
    stop: int | None = None
    streamed: bool = False
    origin: str = ""
    base: int = 0
    fault: Fault | None = None
    decoded: str = ""


@dataclass(frozen=True)
class Spooled:
    """A file to be written for a piece: its name, its bytes, and where they stand in the input.

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
    """A piece of a streamed part: files to read, faults to record. place: where it ends."""

    files: tuple[Spooled, ...]
    place: int
    faults: tuple[Fault, ...] = ()


PACK_FROM = 16  # parts


class Unit:
    """Parts that one worker reads; the same for any number of workers.

    piece: the number of the piece, when the unit is one of a streamed part. Many parts (files of a
    folder) are kept compressed: a corpus may be millions of small files.
    """

    def __init__(
        self,
        index: int,
        parts: tuple[Part, ...],
        piece: int | None = None,
        faults: tuple[Fault, ...] = (),
    ):
        self.index, self.piece, self.faults = index, piece, faults
        self.weight = sum(part.weight for part in parts)
        self.streamed = any(part.streamed for part in parts)
        self._parts: tuple[Part, ...] | bytes = parts
        if len(parts) >= PACK_FROM:
            self._parts = zlib.compress(pickle.dumps(parts), 1)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in order."""
        return self._parts if isinstance(self._parts, tuple) else self._unpacked(self._parts)

    @staticmethod
    def _unpacked(packed: bytes) -> tuple[Part, ...]:
        return pickle.loads(zlib.decompress(packed))

    @property
    def key(self) -> str:
        """Its name in the work folder; sorted names are in the order of the input."""
        return f"{self.index:07d}" if self.piece is None else f"{self.index:07d}-{self.piece:07d}"


class Source(Protocol):
    """A kind of input."""

    name: str
    summary: str  # one line for ``python -m data_prep sources``
    suffixes: tuple[str, ...]  # of the files taken from a folder; () for all

    def plan(self, files: Iterable[InputFile], options: SourceOptions) -> Iterable[Part]:
        """Cut the input into parts, in order, without reading more than it must."""
        ...

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """Read the documents of a part, in batches of a few MiB, in order."""
        ...


class StreamedSource(Source, Protocol):
    """A source that has streamed parts."""

    def pieces(self, part: Part, options: SourceOptions) -> Iterator[Piece]:
        """Cut a streamed part; depends on the part alone. Raises BrokenStreamError at damage."""
        ...


def group_into_units(parts: Iterable[Part], unit_bytes: int) -> list[Unit]:
    """Put neighbouring parts together until a unit weighs ``unit_bytes``."""
    units: list[Unit] = []
    held: list[Part] = []
    weight = 0
    for part in parts:
        alone = part.streamed or (held and held[-1].streamed)
        if held and (alone or weight + part.weight > unit_bytes):
            units.append(Unit(len(units), tuple(held)))
            held, weight = [], 0
        held.append(part)
        weight += part.weight
    if held:
        units.append(Unit(len(units), tuple(held)))
    return units
