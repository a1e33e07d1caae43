"""The one reader of configurations: plain values into frozen dataclasses, and nothing is guessed.

pydantic checks each value against its field's annotation, which may have bounds (`Count`): no text
is a number, no number a switch, no null a value, no fraction a whole number. A dataclass checks the
rest in `__post_init__`. An error is one line that names the field, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")
LONGEST_SHOWN = 100
"""Characters of a refused value in a message."""

Count = Annotated[int, Ge(1)]
NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
DropoutRate = Annotated[float, Ge(0), Lt(1)]


class ConfigError(ValueError):
    """A field of a configuration is missing, unknown or out of range; the message names it."""

    exit_code = 2
    """Of the command that was configured."""


def require(condition: bool, name: str, value: Any, allowed: str) -> None:
    """Raises ConfigError with the field, its value and what is allowed, unless `condition`."""
    if not condition:
        raise ConfigError(refusal(name, value, allowed))


def build(cls: type[T], values: Mapping[str, Any], owner: str = "") -> T:
    """An instance of the dataclass `cls` from plain values, as YAML and JSON have them.

    Lists become tuples, and whole numbers floats, where the field is one; nothing else changes.

    Args:
        owner: dotted prefix for messages, "" or "train.".
    Raises:
        ConfigError: one line; of several mistakes an unknown field, else the first.
    """
    from pydantic import ValidationError

    try:
        text = json.dumps([values], default=_plain, ensure_ascii=False)
        return _adapter(cls).validate_json(text.encode())[0]
    except ValidationError as error:
        raise ConfigError(_line(cls, error.errors(include_url=False), owner.rstrip("."))) from None
    except (TypeError, ValueError, RecursionError) as error:
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
    """Checks the fields of a dataclass's instance that was made in Python, as `build` does.

    Its `__post_init__` calls this.

    Raises:
        ConfigError: names the field, its value and what is allowed.
    """
    from pydantic import ValidationError

    for name, hint in get_type_hints(type(config), include_extras=True).items():
        try:
            _adapter(hint).validate_python((getattr(config, name),))
        except ValidationError as error:
            errors = error.errors(include_url=False)
            raise ConfigError(_line(hint, errors, owner + name)) from None


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


def describe(hint: Any, bounds: bool = False) -> str:
    """What a value of the annotated type is, in words.

    Args:
        bounds: what a number must be, not that it must be one.
    """
    args, origin = get_args(hint), get_origin(hint)
    if origin is Annotated:
        return (bounds and _bounds(hint.__metadata__)) or describe(args[0], bounds)
    if dataclasses.is_dataclass(hint) or dict in (hint, origin):
        return "`field: value` lines"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(arg, bounds) for arg in args))
    if origin is Literal:
        return " | ".join(str(arg) for arg in args)
    if origin is tuple and args[-1] is Ellipsis:
        return f"a list, each {describe(args[0], bounds)}"
    if origin is tuple:
        return f"a list of {len(args)} values, each {describe(args[0], bounds)}"
    return _WORDS.get(hint) or getattr(hint, "__name__", "something else")


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


_SIGNS = {Ge: ("ge", ">=", "["), Gt: ("gt", ">", "("), Le: ("le", "<=", "]"), Lt: ("lt", "<", ")")}


def _bounds(metadata: Sequence[Any]) -> str:
    """ ">= 1", "in [0, 1)"; "" without limits."""
    signs = [(limit, *_SIGNS[type(limit)]) for limit in metadata if type(limit) in _SIGNS]
    limits = [(getattr(limit, name), sign, bracket) for limit, name, sign, bracket in signs]
    if len(limits) == 2:
        (low, _, opening), (high, _, closing) = limits
        return f"in {opening}{low}, {high}{closing}"
    return "".join(f"{sign} {value}" for value, sign, _ in limits)


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


_OUT_OF_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _line(hint: Any, errors: Sequence[ErrorDetails], name: str) -> str:
    """The line for the error that explains the others best, inside the field `name`."""
    unknown = [error for error in errors if error["type"] == "unexpected_keyword_argument"]
    error = (unknown or errors)[0]
    kind, value, path = error["type"], error.get("input"), list(error["loc"][1:])
    if kind == "json_invalid":
        return f"{name or 'configuration'}: {error['msg']}"
    last = path.pop() if kind in ("unexpected_keyword_argument", "missing") else None
    name, hint = _find(hint, path, name)
    if unknown:
        known = [field.name for field in dataclasses.fields(hint)]
        return unknown_field(str(last), known, name and f"{name}.")
    if kind == "missing" and dataclasses.is_dataclass(hint):  # else a list that is too short
        return f"{name and f'{name}.'}{last} is missing: give it in the config file"
    if kind == "value_error":
        cause = error.get("ctx", {}).get("error")
        return str(cause) if isinstance(cause, ConfigError) else f"{name}: {cause}"
    if kind in _OUT_OF_BOUNDS:
        [limit] = error["ctx"].values()  # type: ignore[typeddict-item]
        return refusal(name, type(limit)(value), describe(hint, bounds=True))
    return _wrong_type(name or "configuration", value, hint)


def _find(hint: Any, path: Sequence[str | int], name: str) -> tuple[str, Any]:
    """Dotted name and annotation of the field at a path; of a branch of a union, the union's."""
    for part in path:
        inner = _bare(hint)
        if dataclasses.is_dataclass(inner):
            hint = get_type_hints(inner, include_extras=True)[str(part)]
            name = f"{name}.{part}" if name else str(part)
        elif get_origin(inner) is tuple and isinstance(part, int):
            args = get_args(inner)
            hint = args[0] if args[-1] is Ellipsis else args[part]
            name = f"{name}[{part}]"
        else:
            break
    return name, _bare(hint) if dataclasses.is_dataclass(_bare(hint)) else hint


def _bare(hint: Any) -> Any:
    """X of `X | None` and of `Annotated[X, ...]`; any other annotation itself."""
    args = [arg for arg in get_args(hint) if arg is not type(None)]
    if get_origin(hint) is Annotated:
        return _bare(args[0])
    is_optional = get_origin(hint) in (Union, types.UnionType) and len(args) == 1
    return args[0] if is_optional else hint
