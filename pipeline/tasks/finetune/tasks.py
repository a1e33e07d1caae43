"""The tasks by their sections of the configuration."""

from __future__ import annotations

from typing import Any

from pipeline.tasks.finetune.task import FinetuneTask
from pipeline.tasks.finetune.text import TextReader
from pipeline.tasks.glue.config import GlueConfig
from pipeline.tasks.glue.task import GlueTask
from pipeline.tasks.grammar_induction.config import GrammarInductionConfig
from pipeline.tasks.grammar_induction.finetune import GrammarInductionTask
from pipeline.tasks.summarization.config import SummarizationConfig
from pipeline.tasks.summarization.task import SummarizationTask

_TASKS: dict[type, type[Any]] = {
    GlueConfig: GlueTask,
    SummarizationConfig: SummarizationTask,
    GrammarInductionConfig: GrammarInductionTask,
}


def make_task(section: Any, reader: TextReader, max_context_tokens: int) -> FinetuneTask:
    """The task that a section describes.

    Raises:
        ConfigError: its data is not there.
    """
    return _TASKS[type(section)](section, reader, max_context_tokens)
