"""What a source of documents offers, and the units that a corpus is cut into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from data_prep.batch import RawBatch, Recorder

MIB = 1 << 20


@dataclass(frozen=True)
class SourceOptions:
    """Options of all sources; each reads those that concern it.

    text_field: the field (jsonl) or column (parquet, hf) of the text. split_blank_lines: blank
    lines separate documents (text). detokenize: undo ``@-@`` joins and spaces (wikitext).
    hf_split, hf_config: split and configuration of a Hugging Face dataset.
    """

    text_field: str = "text"
    split_blank_lines: bool = False
    detokenize: bool = False
    hf_split: str = "train"
    hf_config: str | None = None


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the input: its path as given and its size in bytes."""

    path: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the input that is read in one go.

    start, stop: bytes of the file, row groups, or members, as the source defines; stop None means
    the end. weight: about how many bytes of text it holds, for cutting units.
    """

    path: str
    weight: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Unit:
    """Parts that one worker reads; the same for any number of workers."""

    index: int
    parts: tuple[Part, ...]


class Source(Protocol):
    """A kind of input."""

    name: str
    summary: str  # one line for ``python -m data_prep sources``
    suffixes: tuple[str, ...]  # of the files taken from a folder; () for all

    def plan(
        self, files: Sequence[InputFile], options: SourceOptions, scratch: Path
    ) -> Iterable[Part]:
        """Cut the input into parts, in order, without reading more than it must.

        scratch: a folder for what has to be unpacked first; it need not exist.
        """
        ...

    def read(self, part: Part, options: SourceOptions, recorder: Recorder) -> Iterator[RawBatch]:
        """Read the documents of a part, in batches of a few MiB, in order."""
        ...


def group_into_units(parts: Iterable[Part], unit_bytes: int) -> list[Unit]:
    """Put neighbouring parts together until a unit weighs ``unit_bytes``."""
    units: list[Unit] = []
    held: list[Part] = []
    weight = 0
    for part in parts:
        if held and weight + part.weight > unit_bytes:
            units.append(Unit(len(units), tuple(held)))
            held, weight = [], 0
        held.append(part)
        weight += part.weight
    if held:
        units.append(Unit(len(units), tuple(held)))
    return units
