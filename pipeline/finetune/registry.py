"""The tasks by their sections of the configuration."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pipeline.errors import ConfigError
from pipeline.finetune.glue.config import GlueConfig
from pipeline.finetune.grammar_induction.config import GrammarInductionConfig
from pipeline.finetune.summarization.config import SummarizationConfig
from pipeline.finetune.task import FinetuneTask
from pipeline.finetune.text import TextReader

_TASKS: dict[type, tuple[str, str]] = {
    GlueConfig: ("glue.task", "GlueTask"),
    SummarizationConfig: ("summarization.task", "SummarizationTask"),
    GrammarInductionConfig: ("grammar_induction.task", "GrammarInductionTask"),
}
"""Module and class. Only the one that is asked for is imported: each has packages of its own."""


def make_task(section: Any, reader: TextReader, max_context_tokens: int) -> FinetuneTask:
    """The task that a section describes.

    Raises:
        ConfigError: its data, or a package that it needs, is not there.
    """
    module, name = _TASKS[type(section)]
    try:
        task = getattr(import_module(f"pipeline.finetune.{module}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        raise ConfigError(f"{package} is not installed: pip install 'gpst[tasks]'") from None
    return task(section, reader, max_context_tokens)
