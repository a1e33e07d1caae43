"""A step's numbers: means over the global batch, perplexities, seeds; trees of fixed sentences."""

import math
from types import SimpleNamespace

import pytest
import torch
from known_trees import right_branching

from gpst.batch import BatchCounts
from gpst.model.losses import LossTerm
from pipeline.engine.engine import Update
from pipeline.errors import ConfigError
from pipeline.monitor.samples import FixedSentences
from pipeline.train.schedule import Scheduled
from pipeline.train.step import StepReport, Sums, micro_seed

COUNTS = BatchCounts(tokens=100, sentences=20)  # 180 actions, 80 splits


class TwoRanks:
    """A world in which the other rank has the same sums."""

    def sum(self, values):
        return values * 2


def term(value, per):
    return LossTerm(torch.tensor(value), per)


def report(losses, counts=COUNTS):
    sums = Sums()
    for _ in range(2):  # two micro-batches
        sums.add("loss/", losses)
        sums.add("structure/", {"height": term(10.0, "sentences")})
    scheduled = Scheduled(0.1, 0.2, noise=0.3, temperature=0.4)
    return StepReport(4, counts, scheduled, Update(True, 1.5), sums)


def test_metrics_are_means_over_the_global_batch():
    metrics = report({"token": term(45.0, "actions"), "type": term(9.0, "actions")}).metrics(
        TwoRanks()  # type: ignore[arg-type]
    )
    assert metrics["loss/token"] == pytest.approx(4 * 45 / 180)
    assert metrics["loss"] == pytest.approx(1.0 + 0.2)
    # Perplexity of tokens is per token, though GPST's loss is a mean over actions.
    assert metrics["perplexity/token"] == pytest.approx(math.exp(4 * 45 / 100))
    assert metrics["perplexity/type"] == pytest.approx(math.exp(0.2))
    assert metrics["structure/height"] == pytest.approx(2.0)
    assert (metrics["learning_rate"], metrics["parser_learning_rate"]) == (0.1, 0.2)
    assert (metrics["noise"], metrics["temperature"], metrics["gradient_norm"]) == (0.3, 0.4, 1.5)


def test_metrics_of_a_batch_without_splits():
    counts = BatchCounts(tokens=20, sentences=20)
    metrics = report({"parser": term(0.0, "splits")}, counts).metrics(TwoRanks())  # type: ignore
    assert metrics["loss/parser"] == 0.0


def test_metrics_of_a_non_finite_loss():
    losses = {"token": term(math.inf, "tokens"), "type": term(1.0, "actions")}
    metrics = report(losses).metrics(TwoRanks())  # type: ignore[arg-type]
    assert math.isnan(metrics["loss"])
    assert metrics["perplexity/token"] == math.inf


def test_seeds_of_micro_batches_differ_and_repeat():
    places = [(s, k, m, r) for s in (0, 1) for k in range(20) for m in range(4) for r in range(4)]
    seeds = [micro_seed(*place) for place in places]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [micro_seed(*place) for place in places]
    for seed in seeds:
        torch.Generator().manual_seed(seed)


def test_trees_are_bracketed_with_the_tokenizers_words(toy_dataset):
    sentences = FixedSentences(["w1 w2 w3", "w4 unknown"], toy_dataset / "tokenizer")

    def induced_trees(batch):
        assert batch.tokens.tolist() == [1, 2, 3, 4, 0]
        assert batch.sentence_lengths.tolist() == [3, 2]
        return [right_branching(3), right_branching(2)]

    model = SimpleNamespace(training=False, eval=lambda: None, train=lambda _: None)
    model.induced_trees = induced_trees
    trees = sentences.trees(model, torch.device("cpu"))  # type: ignore[arg-type]
    assert [str(tree) for tree in trees] == ["(w1 (w2 w3))", "(w4 w0)"]


def test_a_model_without_trees_has_none(toy_dataset):
    sentences = FixedSentences(["w1"], toy_dataset / "tokenizer")
    assert sentences.trees(torch.nn.Linear(1, 1), torch.device("cpu")) == []


def test_a_sentence_without_tokens_is_refused(toy_dataset):
    with pytest.raises(ConfigError, match="no tokens"):
        FixedSentences([" "], toy_dataset / "tokenizer")
