"""The section `summarization` of a fine-tuning's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpst.config_reader import Count, require
from pipeline.config.paths import PathText

DatasetName = Literal["xsum", "cnn_dailymail", "gigaword"]


@dataclass(frozen=True)
class SummarizationConfig:
    """Which data set, how much of its texts, and how summaries are written."""

    dataset: DatasetName
    path: PathText
    """Folder with train, validation and test as parquet or JSON lines; or datasets:NAME."""
    subset: str | None = None
    """With datasets:NAME: the data set's configuration, e.g. 3.0.0 of cnn_dailymail."""
    document_tokens: Count = 900
    """Tokens of the document that are kept, its first ones."""
    summary_tokens: Count = 100
    """Tokens of the summary that are kept, and at most written."""
    segmenter: str = "fast"
    """Cuts the texts into sentences (data_prep.segment.segmenters)."""
    decoding: Literal["sample", "beam"] = "sample"
    """Word-level search with random sampling of the words, or with the most probable words."""
    top_k: Count = 2
    """Words are drawn from the k most probable ones; 1: always the most probable."""
    beam: Count = 20
    """Hypotheses of the search."""
    sync: bool = True
    """Hypotheses are compared word by word; false: action by action (ablation)."""
    max_test: Count | None = None
    """Only the first so many documents of the test set are summarized."""
    batch_documents: Count = 16
    """Documents that are read and summarized at once."""

    def __post_init__(self) -> None:
        require(bool(self.path), "summarization.path", self.path, "a folder's path")
