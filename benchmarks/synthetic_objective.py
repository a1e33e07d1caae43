"""Which trees let the auto-encoding loss fall lowest: the grammar's, a model's own, or others?

    python benchmarks/synthetic_objective.py --language clauses

A first model is trained as in synthetic_grammar.py. Then models of the same seed are trained on
charts that hold one tree a sentence and no choice (window 1): the grammar's tree, the tree that
the first model finds, a right-branching one, a random one. All see the same words. Where the
first model's trees end with a lower loss than the grammar's, the objective itself asks for other
trees than the grammar's, and better search will not help. One JSON line a kind of tree.

With --then-free a last model learns the grammar's trees for half of its steps and is free after
that: where it stays with them, a better start would do; where it leaves them, training itself
leads away. The line has the F1 of its trees along the way.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from benchmarks.synthetic_grammar import PlanFor, Sentences, Settings, one_by_one, train
from benchmarks.synthetic_languages import LANGUAGES
from gpst.chart.layout import ChartLayout, build_layout
from gpst.model.gpst import GPSTModel
from pipeline.evaluate.grammar_induction.baselines import best_binary, random_tree, right_branching
from pipeline.evaluate.grammar_induction.f1 import score_trees

Span = tuple[int, int]
Trees = Callable[[Sentences], Sequence[Iterable[Span]]]


def boundary_scores(spans: Iterable[Span], num_words: int) -> np.ndarray:
    """Scores (n,) that make the window-1 chart hold this binary tree and nothing else.

    Boundaries merge from the lowest score up, so that a node's boundary has minus its depth; the
    last number is of the sentence's last token and is not read.
    """
    inside = set(spans)
    scores = np.zeros(num_words, dtype=np.float32)

    def split(i: int, j: int, depth: int) -> None:
        if i == j:
            return
        cut = next(k for k in range(i, j) if (i == k or (i, k) in inside)
                   and (k + 1 == j or (k + 1, j) in inside))  # fmt: skip
        scores[cut] = -depth
        split(i, cut, depth + 1)
        split(cut + 1, j, depth + 1)

    split(0, num_words - 1, 0)
    return scores


def charts_of(trees: Trees, batches: int | None = None) -> PlanFor:
    """Charts of one tree a sentence, for so many batches; the model's own after that."""
    done = 0

    def layout(model: GPSTModel, sentences: Sentences) -> ChartLayout | None:
        nonlocal done
        done += 1
        if batches is not None and done > batches:
            return None
        lengths = [len(tree.words) for tree in sentences.trees]
        spans = trees(sentences)
        scores = [boundary_scores(s, n) for s, n in zip(spans, lengths, strict=True)]
        return build_layout(np.concatenate(scores), sentences.batch.sentence_ends, 1)

    return layout


def kinds_of_trees(first: GPSTModel) -> dict[str, Trees]:
    """By name: from sentences to binary trees."""
    source = random.Random(0)
    return {
        "grammar": lambda s: [best_binary(tree) for tree in s.trees],
        "found": lambda s: [tree.internal_spans for tree in first.induced_trees(s.batch)],
        "right branching": lambda s: [right_branching(len(tree.words)) for tree in s.trees],
        "random": lambda s: [random_tree(len(tree.words), source) for tree in s.trees],
    }


@torch.no_grad()
def losses(model: GPSTModel, sentences: Sentences, layout: ChartLayout | None) -> dict[str, float]:
    """Mean losses in nats, without noise."""
    output = model(sentences.batch, layout=layout)
    return {
        name: round(float(term.mean(sentences.batch.counts)), 4)
        for name, term in output.losses.items()
    }


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--language", choices=LANGUAGES, default="phrases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--first-steps", type=int, help="those of the first model")
    parser.add_argument("--then-free", action="store_true", help="see the module")
    parser.add_argument("--kinds", nargs="+", default=["grammar", "found", "right branching"])
    arguments = parser.parse_args()
    settings = Settings(language=arguments.language, steps=arguments.steps, evaluate_every=10**9)
    language = LANGUAGES[arguments.language]()
    trees = language.held_out(arguments.held_out)
    held_out = one_by_one(language, trees)
    first, _ = train(
        replace(settings, steps=arguments.first_steps or arguments.steps), arguments.seed, trees
    )
    print(json.dumps({"trees": "free", **losses(first, held_out, None)}), flush=True)
    fixed = replace(settings, window=1)
    kinds = kinds_of_trees(first)
    for name in arguments.kinds:
        kind = kinds[name]
        model, curve = train(fixed, arguments.seed, trees, plan_for=charts_of(kind))
        line = {
            "trees": name,
            "f1": round(score_trees(trees, [list(s) for s in kind(held_out)]).sentence_f1, 2),
            **losses(model, held_out, charts_of(kind)(model, held_out)),
            "seconds": statistics.fmean(point["seconds"] for point in curve),
        }
        print(json.dumps(line), flush=True)
    if arguments.then_free:
        longer = replace(settings, steps=2 * arguments.steps, evaluate_every=50)
        model, curve = train(
            longer, arguments.seed, trees, plan_for=charts_of(kinds["grammar"], arguments.steps)
        )
        line = {"trees": "grammar, then free", **losses(model, held_out, None), "curve": curve}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
