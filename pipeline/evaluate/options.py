"""The options of an evaluation: dataclass defaults < YAML file < command line."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gpst.config_reader import build
from pipeline.config.run import read_config

T = TypeVar("T")


def option(default: Any, help: str) -> Any:
    """A field of an options dataclass."""
    return dataclasses.field(default=default, metadata={"help": help})


def add_options(parser: ArgumentParser, cls: type) -> None:
    """An argument for each field of the dataclass, and --config for a file of them."""
    parser.add_argument("--config", metavar="YAML", help="options from a file, `field: value`")
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        name = "--" + field.name.replace("_", "-")
        default = _shown(field.default)
        text = field.metadata["help"] + (f" (default: {default})" if default else "")
        hint = _inner(hints[field.name])
        if hint is bool:
            parser.add_argument(name, action=BooleanOptionalAction, default=None, help=text)
        elif get_origin(hint) is tuple:
            kind = get_args(hint)[0]
            parser.add_argument(name, nargs="+", type=kind, metavar="X", help=text)
        elif hint in (int, float, str):
            parser.add_argument(name, type=hint, metavar=hint.__name__.upper(), help=text)
        else:
            parser.add_argument(name, choices=get_args(hint), help=text)


def read_options(cls: type[T], arguments: Namespace) -> T:
    """The options that the file and the command line give.

    Raises:
        ConfigError: an unknown field in the file, or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    if getattr(arguments, "config", None):
        values.update(read_config(arguments.config, cls))
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        value = getattr(arguments, field.name, None)
        if value is not None:
            values[field.name] = value
    return build(cls, values)


def _inner(hint: Any) -> Any:
    """X of X | None."""
    args = [arg for arg in get_args(hint) if arg is not type(None)]
    return args[0] if type(None) in get_args(hint) else hint


def _shown(default: Any) -> str:
    if default is None or default is dataclasses.MISSING or default == ():
        return ""
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return str(default)
