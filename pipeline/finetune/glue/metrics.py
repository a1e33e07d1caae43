"""The metrics of GLUE, in percent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


def _f1(gold: Sequence[int], predicted: Sequence[int]) -> float:
    # 0 where no text is of class 1, without a warning; the library's types do not know numbers.
    return float(f1_score(gold, predicted, zero_division=0))  # type: ignore[arg-type]


def _matthews(gold: Sequence[int], predicted: Sequence[int]) -> float:
    # With one class alone there is nothing to correlate; the library would warn.
    return float(matthews_corrcoef(gold, predicted)) if len({*gold, *predicted}) > 1 else 0.0


METRICS: dict[str, Callable[[Sequence[int], Sequence[int]], float]] = {
    "accuracy": lambda gold, predicted: float(accuracy_score(gold, predicted)),
    "f1": _f1,
    "matthews": _matthews,
}
"""Name -> function of true and predicted classes; F1 is that of class 1."""


def compute_metrics(
    names: Sequence[str], gold: Sequence[int], predicted: Sequence[int]
) -> dict[str, float]:
    """The named metrics, in percent."""
    return {name: 100.0 * METRICS[name](gold, predicted) for name in names}
