"""On which data and with which options results came about, in words, where they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.report.collect import Result

Facts = dict[str, str]
"""What a result depends on besides the model, in words."""


class Settings:
    """What tells the results of a task apart: nothing where all have the same data and options."""

    def __init__(self, results: Iterable[Result] = ()):
        self._facts = {result.folder: _facts(result) for result in results}
        values: dict[tuple[str, str], set[str]] = defaultdict(set)
        for result in results:
            for name, value in self._facts[result.folder].items():
                values[result.task, name].add(value)
        self._differing = {key for key, known in values.items() if len(known) > 1}

    def __call__(self, result: Result, without: tuple[str, ...] = ()) -> str:
        """What the result's rows say after the name of the model; "" where nothing differs.

        Args:
            without: facts that do not matter for the row.
        """
        facts = self._facts.get(result.folder, {})
        shown = [
            value
            for name, value in facts.items()
            if value and (result.task, name) in self._differing and name not in without
        ]
        return f" ({', '.join(shown)})" if shown else ""


def _facts(result: Result) -> Facts:
    values = result.values
    options = values.get("options", {})
    if result.task == "perplexity":
        return _of_perplexity(values, options)
    if result.task == "grammar_induction":
        own = options.get("grammar_induction") or options  # of a fine-tuning, of an evaluation
        return {
            "trees": _file(own.get("test") or own.get("trees")),
            "max_sentences": _counted("the first {} trees", own.get("max_sentences")),
            "punctuation": "with punctuation" if own.get("punctuation") else "",
        }
    if result.task == "syntactic_generalization":
        return {
            "suites": _file(options.get("suites")),
            "beam": _counted("beam {}", options.get("beam")),
            "max_items": _counted("the first {} items", options.get("max_items")),
        }
    return {}


def _of_perplexity(values: Mapping[str, Any], options: Mapping[str, Any]) -> Facts:
    limits = {run.get("limit") for run in values.get("runs", [])} - {None}
    contexts = options.get("context_tokens") or max(limits, default=None)
    return {
        "data": _file(values.get("data")),
        "context_tokens": _counted("contexts of {}", contexts),
        "num_contexts": _counted("{} contexts", values.get("num_contexts")),
        "beam": _counted("beam {}", values.get("beam")),
    }


def _file(path: str | None) -> str:
    return "/".join(Path(path).parts[-2:]) if path else ""


def _counted(words: str, number: int | None) -> str:
    return words.format(f"{number:,}") if number is not None else ""
