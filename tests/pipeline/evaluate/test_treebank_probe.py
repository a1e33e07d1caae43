"""F1 on a small treebank while a model trains, and names of the best metric."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from known_trees import left_branching, right_branching

from data_prep.format.shard import open_dataset
from gpst.model.gpst import GPSTModel
from pipeline.config.run import load_config
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.treebank_probe import TreebankProbe, check_best_metric, open_treebank_probe
from pipeline.train.preflight import check_run

TREES = """\
(S (NP (D w1) (N w2)) (VP (V w3) (N w4)))
(S (A w5) (X (B w6) (Y (C w7) (D w8))) (. w9))
"""
MAIN, OTHER = SimpleNamespace(is_main=True), SimpleNamespace(is_main=False)


@pytest.fixture
def treebank(tmp_path):
    path = tmp_path / "gold.txt"
    path.write_text(TREES)
    return path


class Branching(GPSTModel):
    """Induces the trees that it is told to."""

    def __init__(self, shape):
        torch.nn.Module.__init__(self)
        self.embedding = torch.nn.Embedding(1, 1)
        self.config = SimpleNamespace(max_context_tokens=64)  # type: ignore[assignment]
        self.shape = shape

    def induced_trees(self, batch):
        assert not self.training
        return [self.shape(int(n)) for n in batch.sentence_lengths]


def test_f1_of_the_induced_trees(toy_dataset, treebank):
    probe = TreebankProbe(str(treebank), open_dataset(toy_dataset).tokenizer_path)
    model = Branching(right_branching).train()
    # Without the full stop. First sentence: of (0,1), (2,3) right-branching has (2,3), beside
    # (1,3): precision 1/2, recall 1/2. Second: (1,3), (2,3): all.
    values = probe.evaluate(model, MAIN)  # type: ignore[arg-type]
    assert values["eval/f1"] == pytest.approx(75.0)
    assert values["eval/corpus_f1"] == pytest.approx(75.0)
    assert model.training
    left = probe.evaluate(Branching(left_branching), MAIN)  # type: ignore[arg-type]
    assert left["eval/f1"] == pytest.approx(25.0)


def test_rank_0_measures_and_gpt2_has_no_trees(toy_dataset, treebank):
    probe = TreebankProbe(str(treebank), open_dataset(toy_dataset).tokenizer_path)
    assert probe.evaluate(Branching(right_branching), OTHER) == {}  # type: ignore[arg-type]
    assert probe.evaluate(torch.nn.Linear(1, 1), MAIN) == {}  # type: ignore[arg-type]


def check(toy_config, *overrides):
    checked = check_run(load_config(toy_config, ["evaluate.every_steps=2", *overrides]), 1)
    check_best_metric(checked.config)
    open_treebank_probe(checked.config, checked.source)


def test_a_treebank_that_cannot_be_read_is_said_before_training(toy_config, tmp_path):
    with pytest.raises(DataError, match="absent"):
        check(toy_config, f"evaluate.treebank={tmp_path / 'absent'}")


def test_the_best_metric_is_one_that_is_measured(toy_config, treebank):
    with pytest.raises(ConfigError, match=r"'eval/perplexity' is not measured; known are eval/"):
        check(toy_config, "checkpoint.best_metric=eval/perplexity")
    with pytest.raises(ConfigError, match="eval/f1"):
        check(toy_config, "checkpoint.best_metric=eval/f1")
    check(toy_config, "checkpoint.best_metric=eval/f1", f"evaluate.treebank={treebank}")
    check(toy_config, "checkpoint.best_metric=eval/structure/height")
