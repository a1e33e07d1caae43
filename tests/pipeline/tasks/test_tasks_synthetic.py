"""Structure learning on a language whose trees are known (benchmarks/synthetic_grammar.py)."""

from __future__ import annotations

import random

import pytest

from benchmarks.synthetic_grammar import (
    CLASSES,
    LONGEST,
    SHORTEST,
    VOCABULARY,
    Settings,
    held_out_trees,
    inside_spans,
    num_trees,
    sample,
    train,
    training_batches,
)
from pipeline.tasks.grammar_induction.baselines import baseline_scores
from pipeline.tasks.grammar_induction.score import score_trees


def test_the_language_has_30_words_and_one_tree_a_sentence() -> None:
    trees = held_out_trees(60)

    assert len(set(VOCABULARY) - {"<bos>"}) == len(VOCABULARY) - 1 == 30
    assert {word for tree in trees for word in tree.words} <= set(VOCABULARY)
    assert all(SHORTEST <= len(tree.words) <= LONGEST for tree in trees)
    assert [num_trees(tree.words) for tree in trees] == [1] * 60
    assert num_trees(["o0x", "c0x", "o1x", "c0x"]) == 0


def test_gold_constituents_open_and_close_with_the_same_kind() -> None:
    source = random.Random(3)
    phrases = 0
    for tree in (sample(source) for _ in range(40)):
        for c in tree.constituents:
            if c.label.startswith("P"):
                phrases += 1
                assert tree.words[c.start] in CLASSES[f"O{c.label[1]}"]
                assert tree.words[c.end] in CLASSES[f"C{c.label[1]}"]
    assert phrases > 100


def test_training_text_is_new_in_every_batch_and_the_same_for_a_seed() -> None:
    settings = Settings(batch_tokens=200, context_tokens=32)
    batches = training_batches(settings, 1)
    first, second = next(batches), next(batches)
    again = next(training_batches(settings, 1))

    assert first.tokens.tolist() == again.tokens.tolist() != second.tokens.tolist()
    assert 200 <= first.num_tokens < 200 + LONGEST
    assert int(first.context_lengths.max()) <= 32


@pytest.mark.slow
def test_a_tiny_gpst_finds_the_trees() -> None:
    held_out = held_out_trees(200)
    baselines, _ = baseline_scores(held_out, 3)
    trivial = max(score.sentence_f1 for name, score in baselines.items() if name != "oracle")

    model, curve = train(Settings(), 0, held_out)

    found = score_trees(held_out, inside_spans(model, held_out)).sentence_f1
    assert found == pytest.approx(curve[-1]["f1"], abs=0.01)
    assert found > trivial + 30.0
