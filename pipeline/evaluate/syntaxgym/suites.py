"""SyntaxGym test suites: reading them, and joining regions to sentences."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.evaluate.syntaxgym.formula import (
    Formula,
    FormulaError,
    bits_of,
    parse_formula,
)

CIRCUITS: dict[str, tuple[str, ...]] = {
    "Agreement": ("number_",),
    "Center Embedding": ("center_embed",),
    "Garden-Path Effects": ("npz_", "mvrr"),
    "Gross Syntactic Expectation": ("subordination",),
    "Licensing": ("npi_", "reflexive_"),
    "Long-Distance Dependencies": ("fgd", "cleft"),
}
"""Circuits (Hu et al. 2020) and the beginnings of their suites' names."""

_BEFORE_PUNCTUATION = re.compile(r" (?=[,.;:!?])")


class SuiteError(DataError):
    """A test suite cannot be read; the message names the file and the place."""


@dataclass(frozen=True)
class Text:
    """A condition's sentence and the places of its regions."""

    text: str
    regions: tuple[tuple[int, int, int], ...]
    """(number, start, end) of each region, in characters; start = end if it is empty."""


@dataclass(frozen=True)
class Item:
    """An item of a suite: the same sentence under all conditions."""

    number: int
    conditions: dict[str, Text]


@dataclass(frozen=True)
class Suite:
    """A test suite."""

    name: str
    formulas: tuple[Formula, ...]
    """All must hold for an item to pass."""
    items: tuple[Item, ...]
    path: Path

    @property
    def circuit(self) -> str | None:
        """The circuit that it belongs to; None for one that stands alone."""
        for circuit, beginnings in CIRCUITS.items():
            if self.name.startswith(beginnings):
                return circuit
        return None


def read_suites(path: str | Path, attach_punctuation: bool = False) -> list[Suite]:
    """The suites of a folder of JSON files (or of one file), by name.

    Args:
        attach_punctuation: no space before , . ; : ! ?, as in running text; the suites have one.
    Raises:
        SuiteError, FormulaError: there is none, or one is not in SyntaxGym's format.
    """
    path = Path(path)
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise SuiteError(f"suites {path}: the folder holds no .json files")
    return [_read_suite(file, attach_punctuation) for file in files]


def _read_suite(file: Path, attach_punctuation: bool) -> Suite:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SuiteError(f"suite {file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise SuiteError(f"suite {file}: is not JSON ({error})") from None
    try:
        metric = content["meta"]["metric"]
        if metric != "sum":
            raise SuiteError(f"suite {file}: metric {metric!r} is not known; it must be 'sum'")
        formulas = tuple(parse_formula(p["formula"]) for p in content["predictions"])
        items = tuple(_item(item, attach_punctuation) for item in content["items"])
        suite = Suite(content["meta"]["name"], formulas, items, file)
    except FormulaError as error:
        raise FormulaError(f"suite {file}: {error}") from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise SuiteError(
            f"suite {file}: is not in SyntaxGym's format ({type(error).__name__}: {error}); give a "
            "folder that holds suites alone"
        ) from None
    _check(suite)
    return suite


def _item(item: Any, attach_punctuation: bool) -> Item:
    conditions = {}
    for condition in item["conditions"]:
        regions = [(int(r["region_number"]), str(r["content"])) for r in condition["regions"]]
        conditions[condition["condition_name"]] = join_regions(regions, attach_punctuation)
    return Item(int(item["item_number"]), conditions)


def join_regions(regions: list[tuple[int, str]], attach_punctuation: bool = False) -> Text:
    """The sentence of (number, content) regions: stripped, and joined by a space unless empty."""
    text, places = "", []
    for number, content in regions:
        content = " ".join(content.split())
        if attach_punctuation:
            content = _BEFORE_PUNCTUATION.sub("", " " + content).strip()
        attached = attach_punctuation and content[:1] in tuple(",.;:!?")
        if content and text and not attached:
            text += " "
        places.append((number, len(text), len(text) + len(content)))
        text += content
    return Text(text, tuple(places))


def _check(suite: Suite) -> None:
    """Finds formulas that an item cannot answer, before a model runs for hours."""
    if not suite.items or not suite.formulas:
        raise SuiteError(f"suite {suite.path}: has no items or no predictions")
    for item in suite.items:
        for name, text in item.conditions.items():
            if not text.text:
                raise SuiteError(f"suite {suite.path}: item {item.number}, {name}: has no text")
        zeros = {
            name: {number: 0.0 for number, _, _ in text.regions}
            for name, text in item.conditions.items()
        }
        for formula in suite.formulas:
            try:
                for region in formula.regions:
                    bits_of(region, zeros)
            except FormulaError as error:
                raise SuiteError(
                    f"suite {suite.path}: item {item.number}: formula {formula.text!r}: {error}"
                ) from None
