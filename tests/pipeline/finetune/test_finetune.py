"""Fine-tuning: configuration, prepared examples, the classifier."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gpst.batch import ContextBatch
from gpst.model.classifier import Classifier, LabelledBatch, split_classifier
from gpst.model.losses import total_loss
from pipeline.config.run import REPOSITORY
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.load_model import find_model
from pipeline.finetune.config import finetune_to_yaml, load_finetune_config, run_config
from pipeline.finetune.examples import Example, ExampleSource, prepare_examples
from pipeline.finetune.glue.config import GlueConfig
from pipeline.finetune.registry import make_task
from pipeline.finetune.run import over_seeds
from pipeline.finetune.task import gathered, shared
from pipeline.finetune.text import TextReader, cut

FOLDER = REPOSITORY / "configs" / "finetune"
MINIATURE = FOLDER / "miniature.yaml"
CONFIGS = sorted(set(FOLDER.glob("*.yaml")) - {MINIATURE})  # those of the paper


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_load_with_the_paper_s_numbers(path, tmp_path):
    config = load_finetune_config(path, ["init=somewhere"])
    assert config.optim.learning_rate == 5e-5
    assert config.optim.parser_learning_rate == 1e-3
    epochs, batch = {
        "glue": (20, 64),
        "summarization_xsum": (15, 16),
        "summarization_cnn_dailymail": (15, 16),
        "summarization_gigaword": (10, 64),
        "grammar_induction": (10, 32),
    }["glue" if config.glue else path.stem]
    assert (config.train.num_epochs, config.train.global_batch_contexts) == (epochs, batch)
    assert batch % (config.train.micro_batch_contexts_per_rank * 8) == 0  # 8 GPUs
    again = tmp_path / "again.yaml"
    again.write_text(finetune_to_yaml(config))
    assert load_finetune_config(again) == config


def test_the_miniature_counts_the_punctuation_of_its_pre_training():
    structure = load_finetune_config(MINIATURE, ["init=somewhere"]).structure
    assert structure.chart_order == "punctuation"
    assert structure.punctuation_data == "data/miniature"


def test_there_is_a_config_for_every_task():
    names = {path.stem for path in CONFIGS}
    glue = ("sst2", "cola", "mrpc", "qqp", "qnli", "rte", "mnli")
    summaries = ("xsum", "cnn_dailymail", "gigaword")
    assert names == {
        *(f"glue_{task}" for task in glue),
        *(f"summarization_{name}" for name in summaries),
        "grammar_induction",
    }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeds=[]", "seeds: .* must be a list of one number or more"),
        ("seeds=[1, 1]", "must be different numbers"),
        ("seeds=[-1]", r"numbers in \[0"),
        ("glue.task=wnli", r"glue\.task: 'wnli' is not allowed; it must be sst2 \| cola"),
        ("glue.pth=x", r"unknown field glue\.pth; did you mean glue\.path\?"),
        ("glue=null", "give one of the sections .* there is none"),
        ("summarization={dataset: xsum, path: x}", "there is glue and summarization"),
        ("train.num_epochs=0", r"train\.num_epochs: 0 is not allowed; it must be >= 1"),
        ("engine.zero_stage=3", r"engine\.zero_stage: 3 is not for fine-tuning"),
        ("init=null", "init is missing: give the model to start from"),
    ],
)
def test_wrong_configurations_are_one_line(override, message):
    path = REPOSITORY / "configs" / "finetune" / "glue_cola.yaml"
    with pytest.raises(ConfigError, match=message):
        load_finetune_config(path, ["init=x", override])


def test_a_missing_package_is_one_line(tmp_path, model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for name in (
        "sklearn.metrics",
        "pipeline.finetune.glue.metrics",
        "pipeline.finetune.glue.task",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    reader = TextReader(model_folder("gpst"))
    with pytest.raises(ConfigError, match=r"sklearn is not installed: pip install 'gpst\[tasks\]'"):
        make_task(GlueConfig(task="cola", path=str(tmp_path)), reader, 64)


def test_epochs_become_steps(tmp_path, model_folder):
    path = REPOSITORY / "configs" / "finetune" / "glue_cola.yaml"
    config = load_finetune_config(path, ["init=x", f"run_dir={tmp_path}"])
    made = run_config(config, find_model(model_folder("gpst")), 8551, 7, True)
    assert made.train.num_steps == 20 * 134  # 8551 / 64 = 133.6
    assert made.evaluate.every_steps == made.checkpoint.every_steps == 134
    assert made.checkpoint.best_metric == "eval/score"
    assert made.seed == 7
    assert made.run_dir == str(tmp_path / "seed-7")


def example_source(folder: Path, reader: TextReader, labels=(1, 0, 2)) -> ExampleSource:
    texts = [[[5, 6], [7]], [[8, 9, 10]], [[11]]]
    examples = [Example(text, label) for text, label in zip(texts, labels, strict=True)]
    prepare_examples(folder, "key", {"train": examples}, reader.tokenizer, {"cut": 3})
    return ExampleSource(folder)


def test_examples_come_back_each_a_context_with_its_label(tmp_path, model_folder):
    reader = TextReader(model_folder("gpst"))
    source = example_source(tmp_path / "examples", reader)
    assert source.num_contexts == 3
    batch = source.batch([2, 0])
    assert isinstance(batch, LabelledBatch)
    assert batch.tokens.tolist() == [11, reader.end, 5, 6, 7, reader.end]
    assert batch.sentence_lengths.tolist() == [1, 1, 2, 1, 1]
    assert batch.context_ends.tolist() == [2, 5]
    assert batch.labels.tolist() == [2, 1]
    counts = source.counts([2, 0])
    assert counts == batch.counts
    assert (counts.tokens, counts.sentences, counts.examples) == (6, 5, 2)
    assert sorted(source.sample(3, np.arange(3)).tolist()) == [0, 1, 2]
    plain = example_source(tmp_path / "plain", reader, labels=(None, None, None))
    assert not isinstance(plain.batch([0]), LabelledBatch)
    other = example_source(tmp_path / "other", reader, labels=(1, 0, 1))
    assert len({source.fingerprint, plain.fingerprint, other.fingerprint}) == 3


def test_atoms_come_back_with_their_examples(tmp_path, model_folder):
    reader = TextReader(model_folder("gpst"))
    examples = [
        Example([[5, 6], [7]], inside_word=[[True, False], [False]]),
        Example([[8]], inside_word=[[False]]),
        Example([[9, 10, 11]], inside_word=[[False, True, False]]),
    ]
    folder = tmp_path / "examples"
    prepare_examples(folder, "key", {"train": examples}, reader.tokenizer, {})
    source = ExampleSource(folder)
    assert source.batch([0]).atoms == "constrain_tree"
    source = ExampleSource(folder, atoms="constrain_chart")
    batch = source.batch([2, 0])
    assert batch.tokens.tolist() == [9, 10, 11, reader.end, 5, 6, 7, reader.end]
    assert batch.atoms == batch.to("cpu").atoms == "constrain_chart"
    assert batch.inside_word is not None
    assert np.flatnonzero(batch.inside_word).tolist() == [1, 4]
    assert batch.to("cpu").inside_word is batch.inside_word

    before = source.fingerprint
    np.save(folder / "atoms.npy", np.zeros(10, bool))
    assert ExampleSource(folder).fingerprint != before
    np.save(folder / "atoms.npy", np.zeros(4, bool))
    with pytest.raises(DataError, match=r"atoms\.npy does not fit the examples"):
        ExampleSource(folder)


def test_examples_have_labels_and_atoms_together(tmp_path, model_folder):
    reader, folder = TextReader(model_folder("gpst")), tmp_path / "examples"
    example = Example([[5, 6]], 1, [[True, False]])
    prepare_examples(folder, "key", {"train": [example]}, reader.tokenizer, {})
    batch = ExampleSource(folder, atoms="constrain_chart").batch([0])
    assert isinstance(batch, LabelledBatch)
    assert batch.inside_word is not None
    assert batch.inside_word.tolist() == [True, False, False]
    assert batch.atoms == "constrain_chart"


def test_examples_are_prepared_once_for_each_key(tmp_path, model_folder):
    reader = TextReader(model_folder("gpst"))
    folder = tmp_path / "examples"

    def read(*tokens: int):
        for token in tokens:
            yield Example([[token]], 0)

    record = prepare_examples(folder, "a", {"train": read(5, 6)}, reader.tokenizer, {})
    assert record["num_examples"] == 2
    untouched = read(7)
    prepare_examples(folder, "a", {"train": untouched}, reader.tokenizer, {})
    assert next(untouched).sentences == [[7]]  # nobody has read it
    prepare_examples(folder, "b", {"train": read(8)}, reader.tokenizer, {})
    assert ExampleSource(folder).batch([0]).tokens.tolist() == [8, reader.end]
    with pytest.raises(DataError, match="there are no training examples"):
        prepare_examples(folder, "c", {"train": read()}, reader.tokenizer, {})
    assert ExampleSource(folder).num_contexts == 1  # what was there is still there
    np.save(folder / "labels.npy", np.zeros(5, np.int64))
    with pytest.raises(DataError, match="does not fit the examples"):
        ExampleSource(folder)


def test_texts_are_cut_into_sentences_with_the_tokens_of_the_whole(model_folder):
    reader = TextReader(model_folder("gpst"))
    text = "The dog barks.  It is\nlate! A cat sleeps."
    encode = reader.tokenizer.reference().encode
    (first, empty) = reader.read([text, "  "])
    assert empty == []
    assert [len(first)] == [3]
    flat = [token for sentence in first for token in sentence]
    assert flat == encode(" ".join(text.split()), add_special_tokens=False).ids
    assert len(TextReader(model_folder("gpt2"), "none").read([text])[0]) == 1
    assert cut([[1, 2], [3, 4]], 3) == [[1, 2], [3]]
    assert cut([[1, 2], [3, 4]], 0) == []


@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_classes_are_read_from_the_state_after_cls(tiny_gpst, tiny_gpt2, kind):
    core = (tiny_gpst if kind == "gpst" else tiny_gpt2)(30)
    torch.manual_seed(0)
    model = Classifier(core, 3).eval()
    batch = ContextBatch.from_sentences([[[5, 6], [7], [0], [0]], [[8], [0], [0]]])
    labelled = LabelledBatch(
        batch.tokens, batch.sentence_ends, batch.context_ends, torch.tensor([2, 1])
    )
    output = model(labelled)
    plain = core(labelled)
    states = plain.features[[4, 7]]
    expected = torch.nn.functional.cross_entropy(
        model.classifier(states), labelled.labels, reduction="sum"
    )
    assert output.losses["classification"].sum.item() == pytest.approx(expected.item(), rel=1e-5)
    whole = total_loss(output.losses, labelled.counts).item()
    alone = total_loss(plain.losses, labelled.counts).item()
    assert whole == pytest.approx(alone + expected.item() / 2, rel=1e-5)
    predicted = model.predict([[[5, 6], [7], [0], [0]], [[8], [0], [0]]])
    assert predicted.tolist() == model.classifier(states).argmax(1).tolist()
    # The state has read CLS, and nothing after it.
    changed = LabelledBatch(
        torch.tensor([5, 6, 7, 0, 9, 8, 0, 9]),
        batch.sentence_ends,
        batch.context_ends,
        labelled.labels,
    )
    same = core(changed).features[[4, 7]]
    assert torch.allclose(same, states, atol=1e-5)


def test_classifier_weights_are_told_apart(tiny_gpst):
    core = tiny_gpst(30)
    model = Classifier(core, 2)
    own, head = split_classifier(model.state_dict())
    assert set(own) == set(core.state_dict())
    assert set(head) == {"classifier.weight", "classifier.bias"}
    assert split_classifier(own) == (own, {})
    groups = model.parameter_groups()
    grouped = [id(p) for parameters in groups.values() for p in parameters]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


def test_scores_over_seeds():
    found = over_seeds([{"f1": 80.0}, {"f1": 84.0}])
    assert found == {"f1": {"mean": 82.0, "deviation": 2.0, "values": [80.0, 84.0]}}


def test_ranks_share_items_and_get_all():
    class TwoRanks:
        size = 2

        def __init__(self, rank: int):
            self.rank = rank

        def gather(self, own):
            return [{0: "a", 2: "c"}, {1: "b"}]

    assert list(shared(TwoRanks(1), 5)) == [1, 3]  # type: ignore[arg-type]
    assert gathered(TwoRanks(0), {}) == ["a", "b", "c"]  # type: ignore[arg-type]
