"""Strict reading of configuration: YAML and key=value text into typed frozen dataclasses.

Every refusal is a ConfigError that names the field, the value and what is allowed.
"""

import dataclasses
import difflib
import types
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from pipeline.errors import ConfigError

T = TypeVar("T")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"key {key!r} is given twice (line {line}); keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, empty, not YAML or not a mapping at the top.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"config file {path}: cannot be read ({reason})") from None
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"config file {path}: not valid YAML: {_one_line(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"config file {path}: {error}") from None
    if content is None:
        raise ConfigError(f"config file {path}: is empty; it must hold `field: value` lines")
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path}: holds no `field: value` lines at the top level")
    return content


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def parse_override(text: str) -> tuple[list[str], Any]:
    """Parts of the dotted field and the YAML-parsed value of `field=value`."""
    name, separator, value = text.partition("=")
    parts = name.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(f"override {text!r}: write it as field=value, e.g. train.num_steps=100")
    try:
        return parts, yaml.load(value, _Loader)
    except yaml.YAMLError:
        raise ConfigError(f"override {text!r}: the value is not valid YAML") from None


def set_dotted(tree: dict[str, Any], parts: list[str], value: Any) -> None:
    """Sets tree[a][b]... to value; a mapping is made where there is none."""
    for depth, part in enumerate(parts[:-1]):
        inner = tree.setdefault(part, {})
        if not isinstance(inner, dict):
            name = ".".join(parts[: depth + 1])
            raise ConfigError(f"{'.'.join(parts)}: {name} is {inner!r}, which holds no fields")
        tree = inner
    tree[parts[-1]] = value


def unknown_field(name: str, known: Iterable[str], owner: str = "") -> ConfigError:
    """The error for an unknown field, with the nearest known name or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {owner}{near[0]}?" if near else f"known are {', '.join(known)}"
    return ConfigError(f"unknown field {owner}{name}; {hint}")


def build(cls: type[T], values: Mapping[str, Any], owner: str = "") -> T:
    """An instance of the dataclass `cls` from plain values, each checked against its type.

    Args:
        owner: dotted prefix for messages, "" or "train.".
    """
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            raise unknown_field(str(name), fields, owner)
    for name, field in fields.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"{owner}{name} is missing: give it in the config file")
    return cls(**{name: coerce(hints[name], v, owner + name) for name, v in values.items()})


def coerce(hint: Any, value: Any, name: str) -> Any:
    """`value` as the annotated type, without loss; ConfigError when it is something else."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _refusal(name, value, "`field: value` lines")
        return build(hint, value, name + ".")  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):
        return _coerce_union(get_args(hint), value, name)
    if origin is Literal:
        allowed = get_args(hint)
        if type(value) not in {type(a) for a in allowed} or value not in allowed:
            raise _refusal(name, value, " | ".join(map(str, allowed)))
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise _refusal(name, value, "a list, e.g. [a, b]")
        return _coerce_tuple(get_args(hint), value, name)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _refusal(name, value, "`field: value` lines")
        return dict(value)
    return _coerce_scalar(hint, value, name)


def _coerce_tuple(args: tuple[Any, ...], value: Iterable[Any], name: str) -> tuple[Any, ...]:
    items = list(value)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(coerce(args[0], item, f"{name}[{i}]") for i, item in enumerate(items))
    if len(items) != len(args):
        raise _refusal(name, items, f"a list of {len(args)} values")
    return tuple(
        coerce(arg, item, f"{name}[{i}]")
        for i, (arg, item) in enumerate(zip(args, items, strict=True))
    )


def _coerce_union(args: tuple[Any, ...], value: Any, name: str) -> Any:
    if value is None and type(None) in args:
        return None
    options = [a for a in args if a is not type(None)]
    for option in options:
        try:
            return coerce(option, value, name)
        except ConfigError:
            if len(options) == 1:
                raise
    raise _refusal(name, value, " or ".join(_describe(a) for a in args))


def _coerce_scalar(hint: Any, value: Any, name: str) -> Any:
    if hint is float:
        # YAML 1.1 reads 1e-3 (without a dot) as text.
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise _refusal(name, value, "a number") from None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise _refusal(name, value, _describe(hint))


def _describe(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true | false",
        str: "text",
        type(None): "null",
    }
    return names.get(hint) or ("`field: value` lines" if get_origin(hint) is dict else str(hint))


def _refusal(name: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{name}: {value!r} is not allowed; it must be {allowed}")


def require(condition: bool, name: str, value: Any, allowed: str) -> None:
    """Raises ConfigError naming the field, its value and what is allowed, unless `condition`."""
    if not condition:
        raise _refusal(name, value, allowed)


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
