"""Unlabelled F1 of predicted trees, as Kim et al. (2019) measure it, by length and by label.

Spans of one word and the whole sentence do not count. Sentences of one word are left out. Where no
gold span is left, recall is 1, and precision is 1 too when the prediction has none either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from pipeline.errors import DataError
from pipeline.treebank import GoldTree

Span = tuple[int, int]
LENGTHS = (10, 20, 40)
LABELS = ("NP", "VP", "PP", "SBAR", "ADJP", "ADVP")


@dataclass(frozen=True)
class SentenceScore:
    """A sentence's agreement; shares between 0 and 1."""

    num_words: int
    num_gold: int
    num_predicted: int
    num_common: int

    @property
    def precision(self) -> float:
        if self.num_predicted:
            return self.num_common / self.num_predicted
        return 1.0 if self.num_gold == 0 else 0.0

    @property
    def recall(self) -> float:
        return self.num_common / self.num_gold if self.num_gold else 1.0

    @property
    def f1(self) -> float:
        return harmonic(self.precision, self.recall)


@dataclass(frozen=True)
class TreeScores:
    """Scores of a treebank in percent."""

    num_sentences: int
    """Those of two words and more."""
    sentence_f1: float
    """Mean of the sentences' F1: the number that papers report."""
    corpus_f1: float
    """F1 of all spans together."""
    corpus_precision: float
    corpus_recall: float
    f1_by_length: dict[str, float | None]
    """Sentence F1 of sentences of at most so many words; None where there is none."""
    recall_by_label: dict[str, float | None]
    """Share of the gold spans with a label that were predicted; None without such spans."""
    gold_by_label: dict[str, int]


def harmonic(precision: float, recall: float) -> float:
    """F1; 0 where both are 0."""
    total = precision + recall
    return 2.0 * precision * recall / total if total else 0.0


def score_sentence(gold: GoldTree, predicted: Collection[Span]) -> SentenceScore:
    """Compares the spans that count."""
    size = len(gold.words)
    spans = {(i, j) for i, j in predicted if i < j and (i, j) != (0, size - 1)}
    gold_spans = gold.spans()
    return SentenceScore(size, len(gold_spans), len(spans), len(spans & gold_spans))


def score_trees(
    gold: Sequence[GoldTree],
    predicted: Sequence[Collection[Span]],
    max_lengths: Sequence[int] = LENGTHS,
    labels: Sequence[str] = LABELS,
) -> TreeScores:
    """Scores a treebank.

    Args:
        predicted: the spans of each sentence's tree, over the same words.
        max_lengths: for the F1 of sentences of at most so many words.
        labels: for the share of a label's spans that were predicted.
    Raises:
        DataError: the numbers of sentences differ, or no sentence has two words or more.
    """
    if len(gold) != len(predicted):
        raise DataError(f"{len(predicted)} trees were predicted for {len(gold)} sentences")
    pairs = [(g, p) for g, p in zip(gold, predicted, strict=True) if len(g.words) > 1]
    if not pairs:
        raise DataError("trees: no sentence has two words or more; nothing can be scored")
    scores = [score_sentence(g, p) for g, p in pairs]
    common = sum(score.num_common for score in scores)
    precision = _share(common, sum(score.num_predicted for score in scores))
    recall = _share(common, sum(score.num_gold for score in scores))
    counts, recalled = _by_label(pairs)
    return TreeScores(
        num_sentences=len(scores),
        sentence_f1=_mean_f1(scores) or 0.0,
        corpus_f1=100.0 * harmonic(precision, recall),
        corpus_precision=100.0 * precision,
        corpus_recall=100.0 * recall,
        f1_by_length={
            str(n): _mean_f1([score for score in scores if score.num_words <= n])
            for n in max_lengths
        },
        recall_by_label={
            label: 100.0 * recalled[label] / counts[label] if counts[label] else None
            for label in labels
        },
        gold_by_label={label: counts[label] for label in labels},
    )


def mean_scores(scores: Sequence[TreeScores]) -> TreeScores:
    """Means over several models' scores of the same gold trees."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    def means(tables: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
        return {name: mean([table[name] for table in tables]) for name in tables[0]}

    return TreeScores(
        num_sentences=scores[0].num_sentences,
        sentence_f1=fmean(score.sentence_f1 for score in scores),
        corpus_f1=fmean(score.corpus_f1 for score in scores),
        corpus_precision=fmean(score.corpus_precision for score in scores),
        corpus_recall=fmean(score.corpus_recall for score in scores),
        f1_by_length=means([score.f1_by_length for score in scores]),
        recall_by_label=means([score.recall_by_label for score in scores]),
        gold_by_label=scores[0].gold_by_label,
    )


def _mean_f1(scores: Sequence[SentenceScore]) -> float | None:
    return 100.0 * sum(score.f1 for score in scores) / len(scores) if scores else None


def _share(part: int, whole: int) -> float:
    """1 where there is no span at all, as for a single sentence."""
    return part / whole if whole else 1.0


def _by_label(
    pairs: Sequence[tuple[GoldTree, Collection[Span]]],
) -> tuple[Counter[str], Counter[str]]:
    counts: Counter[str] = Counter()
    recalled: Counter[str] = Counter()
    for gold, predicted in pairs:
        spans = set(predicted)
        for span, label in gold.labelled_spans():
            counts[label] += 1
            recalled[label] += span in spans
    return counts, recalled
