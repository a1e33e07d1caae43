"""YAML 1.2 (its core schema), as configurations are written in it.

PyYAML reads YAML 1.1, where 010 is 8, 1:30 is 90, 1_0 is 10, `no` is false and 1e-4 is text. Here
010 is 10 and 0o10 is 8; 1e-4 is a number; true and false alone are switches; and all else that is
not a number or null is text, dates included. A key that is written twice is refused.
"""

import re
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import ConfigError

_PREFIX = "tag:yaml.org,2002:"
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""Type -> what it looks like, and the characters it may begin with (section 10.3 of YAML 1.2)."""


class _Loader(yaml.SafeLoader):
    """Safe, by the core schema, and a key that is written twice is an error."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012, YAML 1.1's are left behind

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"key {key!r} is given twice (line {line}); keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would read as something else."""


def _integer(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _float(_: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = node.value.lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _name, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_PREFIX + _name, re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor(_PREFIX + "int", _integer)
_Loader.add_constructor(_PREFIX + "float", _float)


_MISTAGGED = (ValueError, KeyError, AttributeError, TypeError)
"""What PyYAML raises for `!!bool perhaps`, by type: a tag that does not fit its text."""


def parse(text: str) -> Any:
    """The value that a YAML text describes.

    Raises:
        ConfigError: in one line; a key is written twice, or the text is not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except ConfigError:
        raise
    except (yaml.YAMLError, *_MISTAGGED) as error:
        raise ConfigError(f"not valid YAML: {_what_is_wrong(error)}") from None
    except RecursionError:
        raise ConfigError(f"not valid YAML: nested deeper than {sys.getrecursionlimit()}") from None


def _what_is_wrong(error: Exception) -> str:
    """In one line, without PyYAML's excerpt of the text."""
    mark = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None or mark is None:
        return " ".join(str(error).split())
    context = f"{error.context}: " if error.context else ""
    return f"{context}{error.problem} (line {mark.line + 1}, column {mark.column + 1})"


def read(path: Path, what: str = "config file") -> Any:
    """The value in a YAML file.

    Args:
        what: the file's name in messages, before its path.

    Raises:
        ConfigError: names the file, which cannot be read or is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{what} {path}: cannot be read ({reason})") from None
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{what} {path}: {error}") from None


def read_fields(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: as `read`; or the file is empty, or not a mapping at the top.
    """
    content = read(path)
    if content is None:
        raise ConfigError(f"config file {path}: is empty; it must hold `field: value` lines")
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path}: holds no `field: value` lines at the top level")
    return content


def write(value: Any) -> str:
    """Plain values as YAML, which `parse` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
