"""The section `glue` of a fine-tuning's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpst.config_reader import Count, require
from pipeline.config.paths import PathText

GlueName = Literal["sst2", "cola", "mrpc", "qqp", "qnli", "rte", "mnli"]


@dataclass(frozen=True)
class GlueConfig:
    """Which of the tasks, and how its texts are read."""

    task: GlueName
    path: PathText
    """Folder of the task's files, or the one above it: TSV as GLUE distributes them, or parquet as
    on the Hugging Face hub; or datasets:NAME."""
    segmenter: str = "fast"
    """Cuts the texts into sentences (data_prep/segment); none: a text is one sentence."""
    predict_test: bool = True
    """Also predict the test set, for the GLUE server."""
    batch_tokens: Count = 8192
    """Tokens in a forward pass of the evaluation."""

    def __post_init__(self) -> None:
        require(bool(self.path), "glue.path", self.path, "a folder's path")
