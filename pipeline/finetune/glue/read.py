"""The rows of a GLUE task, from its TSV files, from parquet, or by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, DataError
from pipeline.finetune.glue.config import GlueConfig
from pipeline.finetune.glue.layout import LAYOUTS, Layout
from pipeline.finetune.rows import BY_NAME, find_split, load_by_name, read_rows

_COLA = ("source", "label", "annotation", "sentence")
"""CoLA's training and development files have no header."""


@dataclass(frozen=True)
class Row:
    """A text or two, and the number of their class."""

    texts: tuple[str, ...]
    label: int | None
    """None in the test set."""
    index: str
    """As the GLUE server wants it."""


@dataclass
class GlueFiles:
    """Where a task's data is, and what of it could not be used.

    Raises:
        ConfigError: the folder holds no such data; names what was looked for.
    """

    config: GlueConfig
    left_out: int = field(default=0, init=False)
    """Lines of QQP without all columns; the published file has some."""

    def __post_init__(self) -> None:
        self.layout: Layout = LAYOUTS[self.config.task]
        self._by_name = self.config.path.startswith(BY_NAME)
        self._folder = Path(self.config.path) if self._by_name else self._find_folder()

    def _find_folder(self) -> Path:
        path = Path(self.config.path)
        candidates = [path / self.layout.folder, path / self.config.task, path]
        for folder in candidates:
            if (folder / "train.tsv").is_file() or find_split(folder, "train", required=False):
                return folder
        raise ConfigError(
            f"glue.path {path}: there is no train.tsv and no train*.parquet in it, in "
            f"{self.layout.folder}/ or in {self.config.task}/; give the folder of GLUE's files"
        )

    @property
    def is_tsv(self) -> bool:
        return not self._by_name and (self._folder / "train.tsv").is_file()

    def files(self) -> list[Path]:
        """All files that are read."""
        if self._by_name:
            return []
        splits = ["train", *self.layout.dev]
        if self.config.predict_test:
            splits += self.layout.test
        return [file for split in splits for file in self._files(split)]

    def _files(self, split: str) -> list[Path]:
        if self.is_tsv:
            file = self._folder / f"{split}.tsv"
            if not file.is_file():
                raise ConfigError(
                    f"glue.path {self._folder}: {file.name} is missing"
                    + (
                        "; get it, or set glue.predict_test=false"
                        if split in self.layout.test
                        else ""
                    )
                )
            return [file]
        return find_split(self._folder, _hub_split(split))

    def rows(self, split: str) -> Iterator[Row]:
        """The rows of train, of one of layout.dev or of one of layout.test.

        Raises:
            DataError: names file, line and what is wrong.
        """
        if self.is_tsv:
            yield from self._tsv(self._files(split)[0], split)
            return
        columns = (*self.layout.hub, "label", "idx")
        if self._by_name:
            rows = load_by_name(self.config.path, self.config.task, _hub_split(split), columns)
        else:
            rows = read_rows(self._files(split), columns)
        for number, row in enumerate(rows):
            yield self._from_hub(row, split, number)

    def _from_hub(self, row: dict[str, Any], split: str, number: int) -> Row:
        label = row["label"]
        is_test = split in self.layout.test
        if not is_test and label not in range(len(self.layout.classes)):
            raise DataError(
                f"{self._folder}, {split}, row {number}: the label {label!r} is none of "
                f"0..{len(self.layout.classes) - 1}"
            )
        texts = tuple(row[name] or "" for name in self.layout.hub)
        return Row(texts, None if is_test else label, str(row["idx"]))

    def _tsv(self, file: Path, split: str) -> Iterator[Row]:
        is_test = split in self.layout.test
        try:
            # utf-8-sig: MRPC's files start with a byte order mark.
            lines = file.read_text(encoding="utf-8-sig").split("\n")
        except UnicodeDecodeError:
            raise DataError(f"{file}: is not UTF-8 text") from None
        header: Sequence[str] = _COLA
        first = 0
        if self.config.task != "cola" or is_test:
            header, first = lines[0].rstrip("\r").split("\t"), 1
        wanted = (*self.layout.tsv, self.layout.test_id if is_test else self.layout.tsv_label)
        for name in wanted:
            if name not in header:
                raise DataError(f"{file}: the header has no column {name!r}: {list(header)}")
        places = [header.index(name) for name in wanted]
        for number, line in enumerate(lines[first:], first + 1):
            if line.strip():
                # No quoting: quotes in these files are only quotes.
                row = self._one_line(line.rstrip("\r").split("\t"), header, places, is_test)
                if row is not None:
                    yield row
                elif self.config.task == "qqp" and split == "train":
                    self.left_out += 1
                else:
                    raise DataError(self._problem(file, number, line, header, places[-1]))

    def _one_line(
        self, cells: list[str], header: Sequence[str], places: list[int], is_test: bool
    ) -> Row | None:
        """None for a line that does not have the columns or a known label."""
        if len(cells) < len(header) or not (is_test or cells[places[-1]] in self.layout.classes):
            return None
        texts = tuple(cells[place] for place in places[:-1])
        last = cells[places[-1]]
        return Row(texts, None if is_test else self.layout.classes.index(last), last)

    def _problem(
        self, file: Path, number: int, line: str, header: Sequence[str], label: int
    ) -> str:
        cells = line.rstrip("\r").split("\t")
        if len(cells) < len(header):
            return f"{file}:{number}: has {len(cells)} columns, not {len(header)}"
        return (
            f"{file}:{number}: the label {cells[label]!r} is none of "
            f"{', '.join(self.layout.classes)}"
        )


def _hub_split(split: str) -> str:
    return split.replace("dev", "validation")
