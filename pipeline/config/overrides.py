"""Overrides (field=value), and configurations as plain values."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gpst.config_reader import shown
from pipeline.config.yaml_text import parse
from pipeline.errors import ConfigError


def parse_override(text: str) -> tuple[list[str], Any]:
    """Parts of the dotted field and the value, read as YAML, of `field=value`."""
    name, separator, value = text.partition("=")
    parts = name.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(f"override {text!r}: write it as field=value, e.g. train.num_steps=100")
    try:
        return parts, parse(value)
    except ConfigError as error:
        raise ConfigError(f"override {text!r}: the value is {error}") from None


def set_dotted(tree: dict[str, Any], parts: list[str], value: Any) -> None:
    """Sets tree[a][b]... to value, and makes the mappings that are missing."""
    for depth, part in enumerate(parts[:-1]):
        inner = tree.setdefault(part, {})
        if not isinstance(inner, dict):
            name = ".".join(parts[: depth + 1])
            raise ConfigError(f"{'.'.join(parts)}: {name} is {shown(inner)}, which holds no fields")
        tree = inner
    tree[parts[-1]] = value


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as plain dicts and lists that YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def flat(tree: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Dotted field -> value, with lists for tuples, as JSON has them."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{owner}{name}.")
        else:
            values[owner + name] = list(value) if isinstance(value, tuple) else value
    return values
