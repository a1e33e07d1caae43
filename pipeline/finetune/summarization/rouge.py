"""ROUGE-1, ROUGE-2 and ROUGE-L by the package rouge-score, with stemming."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rouge_score.rouge_scorer import RougeScorer

NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


def rouge(references: Sequence[str], summaries: Sequence[str]) -> list[dict[str, float]]:
    """F-measures in percent of each summary, by ROUGE-1, ROUGE-2 and ROUGE-L."""
    scorer = RougeScorer(list(NAMES), use_stemmer=True)
    rows = []
    for reference, summary in zip(references, summaries, strict=True):
        scores = scorer.score(reference, summary)
        rows.append({name: 100.0 * scores[key].fmeasure for key, name in NAMES.items()})
    return rows


def mean_rouge(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over summaries."""
    return {name: fmean(row[name] for row in scores) for name in NAMES.values()}
