"""The one reader of configurations: plain values into frozen dataclasses, and nothing guessed.

pydantic holds every value against its field's annotation, to the last field: no text is a number,
no number a switch, no null a value, no fraction a whole number. What a value must be beyond its
type a dataclass says in `__post_init__`. Every refusal is one line that names the field, the value
and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")
LONGEST_SHOWN = 100
"""Characters of a refused value in a message."""


class ConfigError(ValueError):
    """A field of a configuration is missing, unknown or out of range; the message names it."""


def build(cls: type[T], values: Mapping[str, Any], owner: str = "") -> T:
    """An instance of the dataclass `cls` from plain values, as YAML and JSON have them.

    Lists become tuples, and whole numbers floats, where a field is such; nothing else is changed.

    Args:
        owner: dotted prefix for messages, "" or "train.".
    Raises:
        ConfigError: one line; of several faults an unknown field, else the first.
    """
    from pydantic import ValidationError

    try:
        text = json.dumps([values], default=_plain, ensure_ascii=False)
        return _adapter(cls).validate_json(text.encode())[0]
    except ValidationError as error:
        raise ConfigError(_line(cls, error.errors(include_url=False), owner)) from None
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        name = owner.rstrip(".") or "configuration"
        raise ConfigError(f"{name}: holds something else than plain values: {error}") from None


def parse_json(text: str) -> dict[str, Any]:
    """The object that a configuration in JSON describes.

    Raises:
        ConfigError: a key is given twice; it is not JSON, or no object.
    """
    try:
        values = json.loads(text, object_pairs_hook=_once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"must be an object of fields, not {type(values).__name__}")
    return values


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ConfigError(f"key {key!r} is given twice; keep one")
        values[key] = value
    return values


def check_types(config: Any, owner: str = "") -> None:
    """Holds the fields of a dataclass's instance against their annotations, as `build` does.

    For those who make one in Python: called by its `__post_init__`.

    Raises:
        ConfigError: names the field, its value and what is allowed.
    """
    from pydantic import ValidationError

    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        try:
            _adapter(hint).validate_python((value,))
        except ValidationError:
            raise ConfigError(_wrong_type(owner + name, value, hint)) from None


def refusal(name: str, value: Any, allowed: str) -> str:
    """The line for a value that is not allowed."""
    return f"{name}: {shown(value)} is not allowed; it must be {allowed}"


def unknown_field(name: str, known: Iterable[str], owner: str = "") -> str:
    """The line for an unknown field, with the nearest known name or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {owner}{near[0]}?" if near else f"known are {', '.join(known)}"
    return f"unknown field {owner}{name}; {hint}"


def shown(value: Any) -> str:
    """A value as one writes it in YAML, cut where it is long."""
    if value is None or isinstance(value, (bool, list, tuple, dict)):
        text = json.dumps(value, default=repr, ensure_ascii=False)
    else:
        text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def describe(hint: Any) -> str:
    """What a value of the annotated type is, in words."""
    if dataclasses.is_dataclass(hint) or hint is dict or get_origin(hint) is dict:
        return "`field: value` lines"
    args = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(describe, args)))
    if get_origin(hint) is Literal:
        return " | ".join(str(arg) for arg in args)
    if get_origin(hint) is tuple and args[-1] is Ellipsis:
        return f"a list, each {describe(args[0])}"
    if get_origin(hint) is tuple:
        return f"a list of {len(args)} values, each {describe(args[0])}"
    return _WORDS.get(hint) or getattr(hint, "__name__", "something else")


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


@cache
def _adapter(hint: Any) -> TypeAdapter[tuple[Any]]:
    from pydantic import ConfigDict, TypeAdapter

    # In a tuple, since pydantic lets a dataclass have this config only from its surroundings.
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return TypeAdapter(tuple[hint], config=strict)  # pyright: ignore[reportInvalidTypeForm]


def _wrong_type(name: str, value: Any, hint: Any) -> str:
    allowed = describe(hint)
    if isinstance(value, float) and not math.isfinite(value) and "number" in allowed:
        allowed = "a finite number"
    if allowed.startswith("text") and isinstance(value, (bool, int, float)):
        allowed += ": put it in quotes"
    return refusal(name, value, allowed)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} {value!r}")


def _line(cls: type, errors: Sequence[ErrorDetails], owner: str) -> str:
    """The line for the fault that explains the others best."""
    unknown = [error for error in errors if error["type"] == "unexpected_keyword_argument"]
    error = (unknown or errors)[0]
    if error["type"] == "json_invalid":
        return f"{owner.rstrip('.') or 'configuration'}: {error['msg']}"
    path = list(error["loc"][1:])
    if error["type"] in ("unexpected_keyword_argument", "missing"):
        *path, last = path
        name, hint = _find(cls, path, owner)
        if get_origin(hint) is tuple:  # too short
            return _wrong_type(name, error["input"], hint)
        inner = name + "." if name else ""
        if unknown:
            return unknown_field(str(last), [f.name for f in dataclasses.fields(hint)], inner)
        return f"{inner}{last} is missing: give it in the config file"
    name, hint = _find(cls, path, owner)
    if error["type"] == "value_error":
        own = error.get("ctx", {}).get("error")
        return str(own) if isinstance(own, ConfigError) else f"{name}: {own}"
    return _wrong_type(name or "configuration", error["input"], hint)


def _find(cls: type, path: Sequence[str | int], owner: str) -> tuple[str, Any]:
    """Dotted name and annotation of the field at a path; of a branch of a union, the union's."""
    name, hint = owner.rstrip("."), cls
    for part in path:
        inner = _of_optional(hint)
        if dataclasses.is_dataclass(inner):
            hint = get_type_hints(inner)[str(part)]
            name = f"{name}.{part}" if name else str(part)
        elif get_origin(inner) is tuple and isinstance(part, int):
            args = get_args(inner)
            hint = args[0] if args[-1] is Ellipsis else args[part]
            name = f"{name}[{part}]"
        else:
            break
    return name, _of_optional(hint) if dataclasses.is_dataclass(_of_optional(hint)) else hint


def _of_optional(hint: Any) -> Any:
    """X of `X | None`; any other annotation itself."""
    args = [arg for arg in get_args(hint) if arg is not type(None)]
    is_optional = get_origin(hint) in (Union, types.UnionType) and len(args) == 1
    return args[0] if is_optional else hint
