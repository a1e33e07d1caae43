"""Settings that this program no longer has.

A user's configuration may have them only with the value that turned them off. In the stored
configuration of an old run they are left out.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Removed:
    """A setting that was removed."""

    off: Any
    """Its value in a run that did not use it."""
    reason: str


REMOVED = {"engine.plan_ahead": Removed("none", "planning charts ahead was never shown to gain")}
"""By the dotted field."""


def refuse_removed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A user's configuration (a file and field=value) without removed settings that are off.

    The config.yaml that an old run wrote names all settings, and may be used as --config.

    Raises:
        ConfigError: names the first removed setting that is on, and why it was removed.
    """
    for name, value in _removed_in(tree):
        if value != REMOVED[name].off:
            raise ConfigError(
                f"unknown field {name}; it was removed ({REMOVED[name].reason}): leave it out"
            )
    return without_removed(tree)


def without_removed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a stored configuration without removed settings."""
    copy = deepcopy(dict(tree))
    for name, _ in _removed_in(tree):
        *sections, field = name.split(".")
        section = copy
        for part in sections:
            section = section[part]
        del section[field]
    return copy


def removed_settings(tree: Mapping[str, Any]) -> list[str]:
    """A line for each removed setting that was on in a stored configuration."""
    return [
        f"{name} was removed ({REMOVED[name].reason}): the run had it at {value}, and goes on "
        "without it"
        for name, value in _removed_in(tree)
        if value != REMOVED[name].off
    ]


def _removed_in(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The removed settings in a configuration, with their values."""
    for name in REMOVED:
        *sections, field = name.split(".")
        section: Any = tree
        for part in sections:
            section = section.get(part) if isinstance(section, Mapping) else None
        if isinstance(section, Mapping) and field in section:
            yield name, section[field]
