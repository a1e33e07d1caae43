"""From surprisals to scores: items, suites, circuits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pipeline.evaluate.syntaxgym.formula import FormulaError
from pipeline.evaluate.syntaxgym.suites import CIRCUITS, Item, Suite
from pipeline.evaluate.syntaxgym.surprisal import Surprisals, region_bits


@dataclass(frozen=True)
class ItemResult:
    """An item of a suite."""

    suite: str
    number: int
    formulas: tuple[bool, ...]
    """Which of the suite's predictions hold; the item passes when all do."""
    bits: dict[str, dict[int, float]]
    """Surprisal of each region of each condition."""

    @property
    def passes(self) -> bool:
        return all(self.formulas)


@dataclass(frozen=True)
class SuiteScore:
    """A suite, in percent of its items."""

    circuit: str | None
    num_items: int
    score: float
    """Items of which all predictions hold."""
    formulas: tuple[float, ...]
    """Items of which each prediction holds."""


def evaluate_suites(
    suites: Sequence[Suite], surprisals: Surprisals
) -> tuple[list[ItemResult], int]:
    """Every item of every suite; a text that occurs more than once is read once.

    Returns:
        (results, tokens that reach over the end of a region).
    """
    texts = dict.fromkeys(
        text.text for suite in suites for item in suite.items for text in item.conditions.values()
    )
    read = dict(zip(texts, surprisals(list(texts)), strict=True))
    results, crossing = [], 0
    for suite in suites:
        for item in suite.items:
            bits: dict[str, dict[int, float]] = {}
            for name, text in item.conditions.items():
                bits[name], over = region_bits(text, read[text.text])
                crossing += over
            results.append(judge(suite, item, bits))
    return results, crossing


def judge(suite: Suite, item: Item, bits: dict[str, dict[int, float]]) -> ItemResult:
    """Which predictions hold for an item.

    Raises:
        FormulaError: a condition or region is missing.
    """
    try:
        holds = tuple(formula.holds(bits) for formula in suite.formulas)
    except FormulaError as error:
        raise FormulaError(f"suite {suite.name}, item {item.number}: {error}") from None
    return ItemResult(suite.name, item.number, holds, bits)


def suite_scores(suites: Sequence[Suite], results: Sequence[ItemResult]) -> dict[str, SuiteScore]:
    """The suites by name."""
    scores = {}
    for suite in suites:
        items = [result for result in results if result.suite == suite.name]
        scores[suite.name] = SuiteScore(
            suite.circuit,
            len(items),
            100.0 * fmean(item.passes for item in items),
            tuple(
                100.0 * fmean(item.formulas[k] for item in items)
                for k in range(len(suite.formulas))
            ),
        )
    return scores


def circuit_scores(
    suites: dict[str, SuiteScore], first_formula: bool = False
) -> dict[str, float | None]:
    """The circuits: each the mean over its suites; None where there is no suite of it.

    Args:
        first_formula: count an item by the first prediction alone, as published scripts do.
    """
    circuits: dict[str, float | None] = {}
    for circuit in CIRCUITS:
        scores = [
            score.formulas[0] if first_formula else score.score
            for score in suites.values()
            if score.circuit == circuit
        ]
        circuits[circuit] = fmean(scores) if scores else None
    return circuits


def overall(circuits: dict[str, float | None]) -> float | None:
    """The mean over the circuits; None while one is missing."""
    values = [value for value in circuits.values() if value is not None]
    return fmean(values) if len(values) == len(circuits) else None
