"""Settings that this program no longer has.

Where a user gives one it is refused; where a run of before has stored one it is left out.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Removed:
    """What became of a setting."""

    off: Any
    """Its value in a run that did not use it."""
    reason: str


REMOVED = {"engine.plan_ahead": Removed("none", "planning charts ahead was never shown to gain")}
"""By the dotted field."""


def refuse_removed(tree: Mapping[str, Any]) -> None:
    """Refuses what a user gives, in a file or as field=value.

    Raises:
        ConfigError: names the first field that was removed, and why it was.
    """
    for name, _ in _found(tree):
        raise ConfigError(
            f"unknown field {name}; it was removed ({REMOVED[name].reason}): leave it out"
        )


def without_removed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration without the fields that were removed since."""
    kept = deepcopy(dict(tree))
    for name, owner in list(_found(kept)):
        del owner[name.rpartition(".")[2]]
    return kept


def removed_settings(tree: Mapping[str, Any]) -> list[str]:
    """A line for each removed field that a stored configuration made use of."""
    return [
        f"{name} was removed ({REMOVED[name].reason}): the run had it at {value}, and goes on "
        "without it"
        for name, owner in _found(tree)
        if (value := owner[name.rpartition(".")[2]]) != REMOVED[name].off
    ]


def _found(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The removed fields in a configuration, each with the mapping that holds it."""
    for name in REMOVED:
        *sections, field = name.split(".")
        owner: Any = tree
        for section in sections:
            owner = owner.get(section) if isinstance(owner, Mapping) else None
        if isinstance(owner, Mapping) and field in owner:
            yield name, owner
