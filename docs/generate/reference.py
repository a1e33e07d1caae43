"""Reference pages from the code: configuration, metrics, commands."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, get_args, get_origin, get_type_hints
from unittest import mock

from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.config import GPT2Config as BaselineConfig
from pipeline.config import sections
from pipeline.config.paths import PathText
from pipeline.config.run import RunConfig
from pipeline.finetune.config import FinetuneConfig, FinetuneTrainConfig
from pipeline.finetune.registry import task_sections
from pipeline.monitor.metrics import METRICS

GENERATED = "<!-- Written by `python docs/generate`; change the code, not this page. -->\n"

_RUN = {
    "A run: top level": RunConfig,
    "data": sections.DataConfig,
    "data.datasets (a list)": sections.DatasetConfig,
    "train": sections.TrainConfig,
    "optim": sections.OptimConfig,
    "structure": sections.StructureConfig,
    "engine": sections.EngineConfig,
    "checkpoint": sections.CheckpointConfig,
    "monitor": sections.MonitorConfig,
    "evaluate": sections.EvaluateConfig,
}
_MODEL = {
    "model (kind: gpst)": GPSTConfig,
    "model.composition": CompositionConfig,
    "model.parser": ParserConfig,
    "model (kind: gpt2)": BaselineConfig,
}
_FINETUNE = {
    "A fine-tuning: top level": FinetuneConfig,
    "train (fine-tuning)": FinetuneTrainConfig,
    **task_sections(FinetuneConfig),
}
SECTIONS: dict[str, type] = {**_RUN, **_MODEL, **_FINETUNE}


def configuration() -> str:
    """Every field of every section: type, default, meaning."""
    parts = [
        "# Configuration\n" + GENERATED,
        "A YAML file (`--config`), then `field=value` on the command line, in that order, over the "
        "defaults below. An unknown field is refused with the nearest known name, and a value of "
        "another type than its field's: nothing is guessed. `--print-config` prints the whole of "
        "it, `--dry-run` checks it.",
        "Both are YAML 1.2: `010` is 10 and `0o10` is 8, `1e-4` a number; `true` and `false` are "
        "the only switches (`yes`, `no`, `on`, `off` are text); `1:30`, `1_000` and dates are "
        "text. A whole number is not written with a fraction or an exponent (`1000`, not `1e3`); "
        "a number may be whole. In a *path*, a leading `~` and `$NAME` stand for what they do in "
        "a shell; a name that begins with `~` is written `./~`. A field given twice in a file, "
        "and an option given twice, is refused; of `field=value` the last counts.",
    ]
    for title, cls in SECTIONS.items():
        parts.append(f"## {title}\n\n{_first_line(cls)}\n\n" + _fields_table(cls))
    return "\n\n".join(parts) + "\n"


def metrics() -> str:
    """What the numbers of a run are, and where they are shown."""
    lines = [
        "# Metrics\n" + GENERATED,
        "Every number is in `metrics.jsonl`, TensorBoard and Weights & Biases; the last column "
        "says where else. [What healthy numbers look like](../tensorboard.md).\n",
        "| name | what it is | unit | best | shown |\n|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one.name}` | {one.title} | {one.unit} | {one.best or ''} | {', '.join(one.places)} |"
        for one in METRICS.values()
    ]
    return "\n".join(lines) + "\n"


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")


def _fields_table(cls: type) -> str:
    docs, hints = dict(_field_docs(cls)), get_type_hints(cls, include_extras=True)
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        cells = [
            f"`{field.name}`",
            f"`{_type_name(hints[field.name])}`",
            _default(field),
            docs.get(field.name, ""),
        ]
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows)


def _type_name(kind: object) -> str:
    """As one says it of YAML: path, text, a | b, list of numbers."""
    args = get_args(kind)
    if kind == PathText:
        return "path"
    if get_origin(kind) is Annotated:
        return _type_name(args[0])
    if get_origin(kind) is Literal:
        return " | ".join(map(str, args))
    if get_origin(kind) is tuple and args[-1] is not ...:
        return f"[{', '.join(map(_type_name, args))}]"
    if get_origin(kind) is tuple:
        return f"list of {_type_name(args[0])}"
    if get_origin(kind) is dict or dataclasses.is_dataclass(kind):
        return "fields"
    if args:
        return " | ".join(dict.fromkeys(map(_type_name, args)))
    words = {int: "whole number", float: "number", bool: "true | false", str: "text"}
    return words.get(kind, "null")  # type: ignore[call-overload]


def _default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
        plain = json.dumps(value) if value is None or isinstance(value, (bool, tuple)) else value
        return f"`{plain}`"
    return "its own defaults" if field.default_factory is not dataclasses.MISSING else "**needed**"


def _field_docs(cls: type) -> Iterator[tuple[str, str]]:
    """The string below each field, as the code base documents fields."""
    for base in cls.__mro__[:-1]:
        [tree] = ast.parse(inspect.getsource(base)).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                yield field.target.id, " ".join(ast.literal_eval(text.value).split())


PREP = ("build", "tokenizer", "verify", "inspect", "merge", "sources")


def command_list() -> dict[str, tuple[str, Callable[[Sequence[str]], object], list[str]]]:
    """Command as typed -> (console script, function on arguments, arguments before --help)."""
    from data_prep.__main__ import main as prep
    from pipeline.cli.commands import COMMANDS

    rows: dict = {f"python -m data_prep {name}": ("gpst-prep", prep, [name]) for name in PREP}
    for command in COMMANDS.values():
        rows[command.typed] = (command.script, command.run, [])
        for name in command.subcommands:
            rows[f"{command.typed} {name}"] = (command.script, command.run, [name])
    return rows


def help_of(main: Callable[[Sequence[str]], object], before: Sequence[str]) -> str:
    """What `--help` prints, 100 columns wide and without colours."""
    out = io.StringIO()
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(out):
        os.environ.pop("RANK", None)
        try:
            main([*before, "--help"])
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{before}: --help ends with {end.code}") from None
    return out.getvalue().rstrip()


def commands() -> str:
    """`--help` of every command."""
    parts = [
        "# Commands\n" + GENERATED,
        "Results go to standard output, everything else to standard error. Exit codes of all "
        "commands: 0 done; 1 failed; 2 wrong usage or configuration; 3 damaged or unfit data; "
        "130 interrupted. After `pip install` the same commands are there under the names in "
        "brackets; `bash launch/x.sh` and the console script take the same arguments.",
    ]
    for name, (script, main, before) in command_list().items():
        shown = " ".join([script, *before])
        parts.append(f"## {name} (`{shown}`)\n\n```text\n{help_of(main, before)}\n```")
    return "\n\n".join(parts) + "\n"
