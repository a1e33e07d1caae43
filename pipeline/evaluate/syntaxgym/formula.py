"""Predictions of SyntaxGym suites: formulas over the surprisals of regions.

    formula    = comparison (("&" | "|") comparison)*
    comparison = sum [("<" | ">" | "=") sum]
    sum        = term (("+" | "-") term)*
    term       = "-" term | number | region | "(" formula ")" | "[" formula "]"
    region     = "(" (number | "*") ";" "%" condition "%" ")"

`(6;%what_gap%)` is the surprisal of region 6 in the condition what_gap, `(*;%what_gap%)` that of
all its regions. As in the suites' own project, "=" is equality within a tolerance, and "&" and "|"
bind alike, from the left.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pipeline.errors import DataError

EQUAL_RELATIVE = 1e-5
EQUAL_ABSOLUTE_BITS = 1e-3

Surprisals = Mapping[str, Mapping[int, float]]
"""Bits of each region of each condition."""

_TOKEN = re.compile(
    r"\s*(?:(?P<region>\(\s*(?P<number>\d+|\*)\s*;\s*%(?P<condition>[^%]+)%\s*\))"
    r"|(?P<value>\d+(?:\.\d*)?|\.\d+)"
    r"|(?P<sign>[-+<>=&|()\[\]])"
    r"|(?P<other>\S))"
)


class FormulaError(DataError):
    """A formula cannot be read, or asks for what its suite does not have."""


@dataclass(frozen=True)
class Region:
    """A region of a condition; number None stands for all of them."""

    number: int | None
    condition: str


@dataclass(frozen=True)
class Formula:
    """A prediction that holds for an item or not."""

    text: str
    regions: tuple[Region, ...]
    """The regions it speaks of, in order."""
    _holds: Callable[[Surprisals], bool]

    def holds(self, surprisals: Surprisals) -> bool:
        """Whether it holds for an item.

        Raises:
            FormulaError: the item has no such condition or region.
        """
        return self._holds(surprisals)


@dataclass(frozen=True)
class _Part:
    """A parsed piece: how to compute it, and whether that gives a truth value or bits."""

    value: Callable[[Surprisals], float]
    logical: bool


def parse_formula(text: str) -> Formula:
    """Reads a formula.

    Raises:
        FormulaError: it breaks the grammar, or uses bits as truth values or the reverse.
    """
    parser = _Parser(text)
    part = parser.formula()
    parser.end()
    if not part.logical:
        raise parser.error("the formula compares nothing; it needs <, > or =")
    return Formula(text.strip(), tuple(parser.regions), lambda bits: bool(part.value(bits)))


class _Parser:
    """Recursive descent; each method takes what its name says in the grammar above."""

    def __init__(self, text: str):
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0
        self.regions: list[Region] = []

    def error(self, what: str) -> FormulaError:
        return FormulaError(f"formula {self._text.strip()!r}: {what}")

    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self, *symbols: str) -> str:
        """The next token if it is one of the symbols, else ""."""
        symbol = self._next()
        if symbol and symbol in symbols:
            self._at += 1
            return symbol
        return ""

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self.error(f"{self._tokens[self._at][0]!r} is not expected where it stands")

    def formula(self) -> _Part:
        left = self._comparison()
        while sign := self._take("&", "|"):
            left = self._joined(left, self._comparison(), sign)
        return left

    def _joined(self, a: _Part, b: _Part, sign: str) -> _Part:
        self._check(sign, True, a, b)
        if sign == "&":
            return _Part(lambda bits: a.value(bits) and b.value(bits), True)
        return _Part(lambda bits: a.value(bits) or b.value(bits), True)

    def _comparison(self) -> _Part:
        left = self._sum()
        sign = self._take("<", ">", "=")
        if not sign:
            return left
        right = self._sum()
        self._check(sign, False, left, right)
        compare = _COMPARISONS[sign]
        return _Part(lambda bits: compare(left.value(bits), right.value(bits)), True)

    def _sum(self) -> _Part:
        left = self._term()
        while sign := self._take("+", "-"):
            left = self._added(left, self._term(), sign)
        return left

    def _added(self, a: _Part, b: _Part, sign: str) -> _Part:
        self._check(sign, False, a, b)
        if sign == "+":
            return _Part(lambda bits: a.value(bits) + b.value(bits), False)
        return _Part(lambda bits: a.value(bits) - b.value(bits), False)

    def _term(self) -> _Part:
        if self._take("-"):
            part = self._term()
            self._check("-", False, part)
            return _Part(lambda bits: -part.value(bits), False)
        if opened := self._take("(", "["):
            part = self.formula()
            closing = ")" if opened == "(" else "]"
            if not self._take(closing):
                raise self.error(f"{opened!r} is not followed by its {closing!r}")
            return part
        if self._at == len(self._tokens):
            raise self.error("it ends too early")
        token, value = self._tokens[self._at]
        if value is None:
            raise self.error(f"{token!r} is not expected where it stands")
        self._at += 1
        if isinstance(value, Region):
            self.regions.append(value)
            return _Part(lambda bits: bits_of(value, bits), False)
        return _Part(lambda bits: value, False)

    def _check(self, sign: str, logical: bool, *parts: _Part) -> None:
        if any(part.logical != logical for part in parts):
            kinds = "comparisons" if logical else "surprisals and numbers"
            raise self.error(f"{sign!r} stands between {kinds} only")


def _tokens(text: str) -> Iterator[tuple[str, Region | float | None]]:
    for match in _TOKEN.finditer(text):
        if match["other"]:
            raise FormulaError(
                f"formula {text.strip()!r}: {match['other']!r} is no sign of formulas; a region is "
                "written (1;%condition%)"
            )
        if match["region"]:
            number = None if match["number"] == "*" else int(match["number"])
            yield match["region"], Region(number, match["condition"].strip())
        elif match["value"]:
            yield match["value"], float(match["value"])
        elif match["sign"]:
            yield match["sign"], None


def bits_of(region: Region, surprisals: Surprisals) -> float:
    """A region's surprisal. Raises FormulaError where there is none."""
    if region.condition not in surprisals:
        raise FormulaError(f"there is no condition {region.condition!r}")
    regions = surprisals[region.condition]
    if region.number is None:
        return math.fsum(regions.values())
    if region.number not in regions:
        raise FormulaError(f"condition {region.condition!r} has no region {region.number}")
    return regions[region.number]


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= EQUAL_ABSOLUTE_BITS + EQUAL_RELATIVE * abs(b)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "=": _equal,
}
