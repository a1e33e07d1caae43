"""Documents and summaries of XSum, CNN/DailyMail and Gigaword."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pipeline.errors import ConfigError, DataError
from pipeline.finetune.rows import BY_NAME, find_split, load_by_name, read_rows
from pipeline.finetune.summarization.config import DatasetName, SummarizationConfig

COLUMNS: dict[DatasetName, tuple[str, str]] = {
    "xsum": ("document", "summary"),
    "cnn_dailymail": ("article", "highlights"),
    "gigaword": ("document", "summary"),
}
"""Document and summary, as on the Hugging Face hub."""


@dataclass(frozen=True)
class Pair:
    """A document and its summary."""

    document: str
    summary: str


@dataclass(frozen=True)
class SummaryFiles:
    """Where a data set's splits train, validation and test are.

    Raises:
        ConfigError: the folder does not exist, or has no such files.
    """

    config: SummarizationConfig

    def __post_init__(self) -> None:
        if not self._by_name and not Path(self.config.path).is_dir():
            raise ConfigError(f"summarization.path {self.config.path}: no such folder")
        self.files()

    @property
    def _by_name(self) -> bool:
        return self.config.path.startswith(BY_NAME)

    def files(self) -> list[Path]:
        """All files that are read."""
        if self._by_name:
            return []
        path = Path(self.config.path)
        return [f for split in ("train", "validation", "test") for f in find_split(path, split)]

    def pairs(self, split: str, count: int | None = None) -> Iterator[Pair]:
        """The pairs of a split, or its first `count`.

        Raises:
            DataError: names file, row and what is wrong.
        """
        columns = COLUMNS[self.config.dataset]
        if self._by_name:
            rows = load_by_name(self.config.path, self.config.subset, split, columns)
        else:
            rows = read_rows(find_split(Path(self.config.path), split), columns)
        for number, row in enumerate(islice(rows, count)):
            document, summary = (row[name] for name in columns)
            for name, text in zip(columns, (document, summary), strict=True):
                if not isinstance(text, str):
                    raise DataError(
                        f"{self.config.path}, {split}, row {number}: {name} is {text!r}, no text"
                    )
            yield Pair(document, summary)
