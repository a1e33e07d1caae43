"""How much do neighbouring words tell of each other, inside a constituent and across its edge?

    python benchmarks/synthetic_neighbours.py

No model is trained. Pointwise mutual information (PMI, in nats) of neighbouring words is counted in
sampled sentences; a sentence is then split where it is lowest, again and again. Where such trees
score high, words that belong together in the grammar are those that predict each other. One JSON
line a language.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.synthetic_languages import LANGUAGES, Language
from pipeline.evaluate.grammar_induction.baselines import baseline_scores, best_binary
from pipeline.evaluate.grammar_induction.f1 import score_trees
from pipeline.treebank import GoldTree

_FLOOR = -9.0
"""For a word that was never seen beside another."""


class Neighbours:
    """PMI of neighbouring words, counted in sentences."""

    def __init__(self, trees: Sequence[GoldTree]):
        self.pairs = Counter(pair for tree in trees for pair in pairwise(tree.words))
        self.first: Counter[str] = Counter()
        self.second: Counter[str] = Counter()
        for (a, b), count in self.pairs.items():
            self.first[a] += count
            self.second[b] += count
        self.total = self.pairs.total()

    def pmi(self, tree: GoldTree) -> list[float]:
        """Of each boundary of a sentence; a pair that was never seen counts as half seen."""
        return [self._of(a, b) for a, b in pairwise(tree.words)]

    def _of(self, a: str, b: str) -> float:
        expected = self.first[a] * self.second[b]
        return math.log(max(self.pairs[a, b], 0.5) * self.total / expected) if expected else _FLOOR


def split_at_lowest(scores: Sequence[float]) -> list[tuple[int, int]]:
    """Spans of the tree that splits at the lowest boundary first; of equal ones the left one."""
    spans, work = [], [(0, len(scores))]
    while work:
        i, j = work.pop()
        if i < j:
            spans.append((i, j))
            cut = min(range(i, j), key=lambda k: scores[k])
            work += [(cut + 1, j), (i, cut)]
    return spans


def measure(language: Language, sampled: int = 6000, held_out: int = 200) -> dict[str, object]:
    """The numbers of a language."""
    source = random.Random(1)
    neighbours = Neighbours([language.sample(source) for _ in range(sampled)])
    trees = language.held_out(held_out)
    scores = [neighbours.pmi(tree) for tree in trees]
    inside: list[float] = []
    across: list[float] = []
    for tree, values in zip(trees, scores, strict=True):
        sisters = set(best_binary(tree))
        for k, value in enumerate(values):
            (inside if (k, k + 1) in sisters else across).append(value)
    trivial = baseline_scores(trees, 1)[0]
    split = score_trees(trees, [split_at_lowest(s) for s in scores])
    best = max(score.sentence_f1 for name, score in trivial.items() if name != "oracle")
    return {
        "words": len(language.vocabulary) - 1,
        "best_trivial_f1": round(best, 1),
        "pmi_tree_f1": round(split.sentence_f1, 1),
        "pmi_of_sisters": round(statistics.fmean(inside), 2),
        "pmi_of_others": round(statistics.fmean(across), 2),
    }


def main() -> None:
    """Prints every language's numbers."""
    for name, make in LANGUAGES.items():
        print(json.dumps({"language": name, **measure(make())}), flush=True)


if __name__ == "__main__":
    main()
