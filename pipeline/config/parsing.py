"""Configuration read by gpst.parsing, with the errors of this package, and what goes around it:
key=value text, checks of ranges, and back to plain values.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from gpst import parsing
from gpst.parsing import ConfigError as StrictError
from gpst.parsing import refusal, shown
from pipeline.config.yaml_text import parse
from pipeline.errors import ConfigError

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], owner: str = "") -> T:
    """See gpst.parsing.build."""
    try:
        return parsing.build(cls, values, owner)
    except StrictError as error:
        raise ConfigError(str(error)) from None


def unknown_field(name: str, known: Iterable[str], owner: str = "") -> ConfigError:
    """The error for an unknown field, with the nearest known name or all of them."""
    return ConfigError(parsing.unknown_field(name, known, owner))


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
    """Sets tree[a][b]... to value; a mapping is made where there is none."""
    for depth, part in enumerate(parts[:-1]):
        inner = tree.setdefault(part, {})
        if not isinstance(inner, dict):
            name = ".".join(parts[: depth + 1])
            raise ConfigError(f"{'.'.join(parts)}: {name} is {shown(inner)}, which holds no fields")
        tree = inner
    tree[parts[-1]] = value


def require(condition: bool, name: str, value: Any, allowed: str) -> None:
    """Raises ConfigError naming the field, its value and what is allowed, unless `condition`."""
    if not condition:
        raise ConfigError(refusal(name, value, allowed))


def require_number(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raises ConfigError unless low <= value <= high and value is finite."""
    allowed = f">= {low:g} and finite" if high == float("inf") else f"in [{low:g}, {high:g}]"
    require(low <= value <= high and value < float("inf"), name, value, allowed)


def require_interval(name: str, value: int | None) -> None:
    """Raises ConfigError unless value is None or >= 1."""
    require(value is None or value >= 1, name, value, ">= 1 (or null, where it may be left out)")


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as plain dicts and lists that YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value
