"""What the report calls models and runs: words, where the paths of their folders are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpst.config_reader import ConfigError, parse_json
from pipeline.config import yaml_text
from pipeline.report.collect import Result, Training, label
from pipeline.report.settings import Settings
from pipeline.run_folder import CONFIG

_WORDS = {
    "gpst": "GPST", "gpt2": "GPT-2", "no": "without", "glue": "GLUE", "cola": "CoLA",
    "mrpc": "MRPC", "mnli": "MNLI", "qnli": "QNLI", "qqp": "QQP", "rte": "RTE", "sst2": "SST-2",
    "xsum": "XSum",
}  # fmt: skip
_CORPORA = {
    "openwebtext": "OpenWebText", "wikitext103": "WikiText-103", "wikitext2": "WikiText-2",
}  # fmt: skip
_KINDS = ("GPST", "GPT-2")


def in_words(path: str | Path) -> str:
    """A model's or run's path in words.

    >>> in_words("runs/gpst_small_openwebtext/seed-1/exported")
    'GPST small, OpenWebText, seed 1'
    """
    return _words(label(path))


def _words(name: str) -> str:
    parts = []
    for part in name.split("/"):
        words = part.replace("-", " ").replace("_", " ").split()
        plain = [_WORDS.get(word, word) for word in words if word not in _CORPORA]
        kinds = [word for word in plain[1:] if word in _KINDS]
        parts += [*kinds, " ".join(word for word in plain if word not in kinds)]
        parts += [_CORPORA[word] for word in words if word in _CORPORA]
    return ", ".join(filter(None, parts))


class Names:
    """Names of the models in some results: the kind comes first where the path does not say it."""

    def __init__(self, results: Sequence[Result] = (), trainings: Iterable[Training] = ()):
        self.setting = Settings(results)
        self._kinds: dict[str, str] = {}
        for training in trainings:
            self._add(training.folder, _kind_of(training.folder))
        for result in results:
            for kind, path in _models(result.values):
                self._add(path, kind or _kind_of(Path(path)))
            for run in result.values.get("gpt2_runs", []):
                self._add(run["path"], "GPT-2")

    def _add(self, path: str | Path, kind: str) -> None:
        if kind:
            self._kinds[without_seed(path)] = kind

    def __call__(self, path: str | Path, seed: bool = True) -> str:
        """A model's name.

        Args:
            seed: with its seed.
        """
        plain = without_seed(path)
        name = _words(label(path) if seed else plain)
        kind = self._kinds.get(plain, "")
        known = not kind or any(one in name for one in _KINDS)
        return name if known else f"{kind}, {name}"

    def of(self, result: Result) -> str:
        """The model, or models, of a result, and its setting; of several seeds without the seed."""
        paths = list(dict.fromkeys(path for _, path in _models(result.values)))
        of_seed = dict.fromkeys(map(without_seed, paths))
        names = dict.fromkeys(self(path, seed=len(of_seed) == len(paths)) for path in paths)
        trees = result.values.get("options", {}).get("predictions")
        name = " + ".join(names) or (
            f"trees of {Path(trees).name}" if trees else in_words(result.folder)
        )
        return name + self.setting(result)


def without_seed(path: str | Path) -> str:
    """The label of a model's path without its seed."""
    return label(path).rpartition("/seed-")[0] or label(path)


def _models(values: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Kind ("" where it is not known) and path of the models of a result, baselines left out."""
    if values.get("task") == "perplexity":
        paths = [run["path"] for run in values.get("runs", [])]
        return [("GPST", path) for path in paths or [values.get("gpst")] if path]
    found = [values.get("model"), *(run.get("model") for run in values.get("runs", []))]
    models = [model for model in found if model]
    paths = [
        one["path"] for model in models for one in ([model] if "path" in model else model.values())
    ]
    return [("", path) for path in paths]


def _kind_of(folder: Path) -> str:
    """From the configuration of a run or of an exported model."""
    for name, read in ((CONFIG, yaml_text.read), ("config.json", _json)):
        file = folder / name
        if file.is_file():
            try:
                values = read(file, str(file))
            except (ConfigError, OSError, ValueError):
                continue
            if isinstance(values, dict):
                model = values.get("model")
                kind = model.get("kind") if isinstance(model, dict) else values.get("model_type")
                return _WORDS.get(str(kind), "")
    return ""


def _json(file: Path, _: str) -> Any:
    return parse_json(file.read_text(encoding="utf-8"))
