"""The tasks of fine-tuning: to add one, add its folder and its field of FinetuneConfig.

The field NAME has as its section of the configuration a dataclass, say XConfig in NAME/config.py;
NAME/task.py then has the FinetuneTask, XTask.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.finetune.task import FinetuneTask
    from pipeline.finetune.text import TextReader


@cache
def task_sections(config_class: type) -> dict[str, type]:
    """Name -> dataclass of the tasks: the fields of FinetuneConfig that are `XConfig | None`."""
    sections = {}
    for name, hint in get_type_hints(config_class).items():
        kinds = get_args(hint)
        if len(kinds) == 2 and is_dataclass(kinds[0]) and kinds[1] is NoneType:
            sections[name] = kinds[0]
    return sections


def make_task(section: Any, reader: TextReader, max_context_tokens: int) -> FinetuneTask:
    """The task that a section describes. Only its module is imported: each needs other packages.

    Raises:
        ConfigError: its data, or a package that it needs, is missing.
    """
    cls = type(section)
    try:
        module = import_module(cls.__module__.removesuffix("config") + "task")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        raise ConfigError(f"{package} is not installed: pip install 'gpst[tasks]'") from None
    task = getattr(module, cls.__name__.removesuffix("Config") + "Task")
    return task(section, reader, max_context_tokens)
