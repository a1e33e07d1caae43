"""ROUGE by the package rouge-score, with stemming: F-measures in percent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from rouge_score.rouge_scorer import RougeScorer

NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
"""What rouge-score calls them, and their names in results."""
BY_SENTENCES = {"rougeLsum": "ROUGE-Lsum"}
"""Of summaries of several sentences: the union of each reference sentence's common subsequences
with the summary's sentences."""


def rouge(
    references: Sequence[str],
    summaries: Sequence[str],
    sentences: Callable[[str], Sequence[str]] | None = None,
) -> list[dict[str, float]]:
    """The scores of each summary.

    Args:
        sentences: cuts a text that has no line breaks into sentences; then ROUGE-Lsum, for which
            rouge-score takes each line as a sentence, is among the scores.
    """
    names = NAMES if sentences is None else NAMES | BY_SENTENCES
    scorer = RougeScorer(list(names), use_stemmer=True)
    rows = []
    for pair in zip(references, summaries, strict=True):
        if sentences is not None:
            pair = [text if "\n" in text else "\n".join(sentences(text)) for text in pair]
        scores = scorer.score(*pair)
        rows.append({name: 100.0 * scores[key].fmeasure for key, name in names.items()})
    return rows


def mean_rouge(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over summaries."""
    return {name: fmean(row[name] for row in scores) for name in scores[0]}
