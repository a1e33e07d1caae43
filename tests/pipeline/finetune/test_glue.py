"""GLUE: readers of the real layouts, encoding, figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gpst.model.classifier import Classifier
from pipeline.errors import ConfigError, DataError
from pipeline.finetune.glue.config import GlueConfig
from pipeline.finetune.glue.layout import LAYOUTS
from pipeline.finetune.glue.metrics import compute_metrics
from pipeline.finetune.glue.read import GlueFiles, Row
from pipeline.finetune.glue.task import GlueTask
from pipeline.finetune.text import TextReader, cut_pair, length

MNLI_START = "index\tpromptID\tpairID\tgenre\ts1_bp\ts2_bp\ts1_p\ts2_p\tsentence1\tsentence2"

TSV = {
    "cola": {
        "train": 'gj04\t1\t\tThe "sailors rode the breeze.\ngj04\t0\t*\tThey drank the pub.\n',
        "dev": "gj04\t1\t\tBill floated into the cave.\n",
        "test": "index\tsentence\n0\tBill whistled past.\n",
    },
    "sst2": {
        "train": "sentence\tlabel\na fine film \t1\ndull \t0\n",
        "dev": "sentence\tlabel\nsharp \t1\n",
        "test": "index\tsentence\n0\tuneasy mishmash\n",
    },
    "mrpc": {
        "train": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        '1\t70\t71\tHe said "yes.\tYes, he said.\r\n0\t72\t73\tA cat.\tA dog.\r\n',
        "dev": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tA\tA\n",
        "test": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tB\tC\n",
    },
    "qqp": {
        "train": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "1\t2\t3\tWho?\tWho is it?\t1\n4\t5\t6\tbroken in two\n7\t8\t9\tWhy?\tHow?\t0\n",
        "dev": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA?\tB?\t0\n",
        "test": "id\tquestion1\tquestion2\n0\tC?\tD?\n",
    },
    "qnli": {
        "train": "index\tquestion\tsentence\tlabel\n0\tWhen?\tIn May.\tentailment\n"
        "1\tWho?\tIt rains.\tnot_entailment\n",
        "dev": "index\tquestion\tsentence\tlabel\n0\tWhat?\tThat.\tnot_entailment\n",
        "test": "index\tquestion\tsentence\n0\tWhere?\tHere.\n",
    },
    "rte": {
        "train": "index\tsentence1\tsentence2\tlabel\n0\tA. B.\tA.\tentailment\n"
        "1\tC.\tD.\tnot_entailment\n",
        "dev": "index\tsentence1\tsentence2\tlabel\n0\tE.\tE.\tentailment\n",
        "test": "index\tsentence1\tsentence2\n0\tF.\tG.\n",
    },
    "mnli": {
        "train": f"{MNLI_START}\tlabel1\tgold_label\n"
        "0\t1\t2\tfiction\tx\tx\tx\tx\tA man.\tA person.\tentailment\tentailment\n"
        "1\t1\t3\tfiction\tx\tx\tx\tx\tA man.\tA dog.\tcontradiction\tcontradiction\n",
        "dev_matched": f"{MNLI_START}\tlabel1\tlabel2\tgold_label\n"
        "0\t1\t2\tfiction\tx\tx\tx\tx\tM1.\tM2.\tneutral\tentailment\tneutral\n",
        "dev_mismatched": f"{MNLI_START}\tlabel1\tgold_label\n"
        "0\t1\t2\tletters\tx\tx\tx\tx\tN1.\tN2.\tneutral\tcontradiction\n",
        "test_matched": f"{MNLI_START}\n0\t1\t2\tfiction\tx\tx\tx\tx\tP1.\tP2.\n",
        "test_mismatched": f"{MNLI_START}\n0\t1\t2\tletters\tx\tx\tx\tx\tQ1.\tQ2.\n",
    },
}
EXPECTED = {
    "cola": [(('The "sailors rode the breeze.',), 1), (("They drank the pub.",), 0)],
    "sst2": [(("a fine film ",), 1), (("dull ",), 0)],
    "mrpc": [(('He said "yes.', "Yes, he said."), 1), (("A cat.", "A dog."), 0)],
    "qqp": [(("Who?", "Who is it?"), 1), (("Why?", "How?"), 0)],
    "qnli": [(("When?", "In May."), 0), (("Who?", "It rains."), 1)],
    "rte": [(("A. B.", "A."), 0), (("C.", "D."), 1)],
    "mnli": [(("A man.", "A person."), 0), (("A man.", "A dog."), 2)],
}


def write_tsv(folder: Path, task: str) -> Path:
    own = folder / LAYOUTS[task].folder
    own.mkdir(parents=True)
    for split, text in TSV[task].items():
        (own / f"{split}.tsv").write_bytes(text.encode())
    return own


def write_hub(folder: Path, task: str) -> Path:
    """The rows of EXPECTED as parquet in the hub's layout, in two files."""
    layout = LAYOUTS[task]
    own = folder / task
    own.mkdir(parents=True)
    for split in ("train", *layout.dev, *layout.test):
        rows = EXPECTED[task]
        columns = {name: [texts[k] for texts, _ in rows] for k, name in enumerate(layout.hub)}
        is_test = split in layout.test
        columns["label"] = [-1 if is_test else label for _, label in rows]
        columns["idx"] = list(range(len(rows)))
        name = split.replace("dev", "validation")
        for part in range(2):
            cut = {key: values[part : part + 1] for key, values in columns.items()}
            pq.write_table(pa.table(cut), own / f"{name}-{part:05d}-of-00002.parquet")
    return own


@pytest.mark.parametrize("task", list(LAYOUTS))
@pytest.mark.parametrize("above", [True, False])
def test_tsv_files_are_read_as_distributed(tmp_path, task, above):
    own = write_tsv(tmp_path, task)
    files = GlueFiles(GlueConfig(task=task, path=str(tmp_path if above else own)))
    rows = list(files.rows("train"))
    assert [(row.texts, row.label) for row in rows] == EXPECTED[task]
    assert files.left_out == (1 if task == "qqp" else 0)
    for split in files.layout.test:
        [row] = files.rows(split)
        assert row.label is None
        assert row.index == "0"
        assert len(row.texts) == len(files.layout.tsv)
    assert len(files.files()) == 1 + 2 * len(files.layout.dev)
    assert len(list(files.rows(files.layout.dev[0]))) == 1


@pytest.mark.parametrize("task", list(LAYOUTS))
def test_parquet_files_give_the_same_rows(tmp_path, task):
    write_hub(tmp_path, task)
    files = GlueFiles(GlueConfig(task=task, path=str(tmp_path)))
    for split in ("train", *files.layout.dev):
        assert [(row.texts, row.label) for row in files.rows(split)] == EXPECTED[task]
    test = list(files.rows(files.layout.test[0]))
    assert [(row.texts, row.label, row.index) for row in test] == [
        (texts, None, str(k)) for k, (texts, _) in enumerate(EXPECTED[task])
    ]


def test_data_sets_are_loaded_by_name(monkeypatch):
    import datasets

    asked = []

    def load(name, subset, split):
        asked.append((name, subset, split))
        return datasets.Dataset.from_dict({"sentence": ["a"], "label": [1], "idx": [0]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    files = GlueFiles(GlueConfig(task="cola", path="datasets:nyu-mll/glue"))
    assert list(files.rows("dev")) == [Row(("a",), 1, "0")]
    assert asked == [("nyu-mll/glue", "cola", "validation")]

    def missing(*_, **__):
        raise FileNotFoundError("no such\ndata set")

    monkeypatch.setattr(datasets, "load_dataset", missing)
    with pytest.raises(ConfigError, match="train: cannot be loaded: no such data set"):
        list(files.rows("train"))


@pytest.mark.parametrize(
    ("task", "split", "text", "message"),
    [
        ("rte", "train", "index\tsentence1\tsentence2\tlabel\n0\tA\n", "2: has 2 columns, not 4"),
        ("rte", "train", "index\ta\tb\tlabel\n", "no column 'sentence1'"),
        ("rte", "train", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tno\n", "label 'no' is none"),
        ("cola", "train", "x\t2\t\tA\n", "train.tsv:1: the label '2' is none of 0, 1"),
        ("qqp", "dev", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\n", "dev.tsv:2"),
    ],
)
def test_damaged_tsv_files_are_refused_with_their_line(tmp_path, task, split, text, message):
    own = write_tsv(tmp_path, task)
    (own / f"{split}.tsv").write_text(text)
    files = GlueFiles(GlueConfig(task=task, path=str(tmp_path)))
    with pytest.raises(DataError, match=message):
        list(files.rows(split))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"no train\.tsv and no train\*\.parquet .* RTE/ or in rte"
    ):
        GlueFiles(GlueConfig(task="rte", path=str(tmp_path)))
    own = write_tsv(tmp_path, "rte")
    (own / "test.tsv").unlink()
    with pytest.raises(ConfigError, match=r"test\.tsv is missing; .*predict_test=false"):
        GlueFiles(GlueConfig(task="rte", path=str(tmp_path))).files()
    GlueFiles(GlueConfig(task="rte", path=str(tmp_path), predict_test=False)).files()
    write_hub(tmp_path / "hub", "rte")
    bad = tmp_path / "hub" / "rte" / "train-00000-of-00002.parquet"
    pq.write_table(pa.table({"sentence1": ["a"]}), bad)
    files = GlueFiles(GlueConfig(task="rte", path=str(tmp_path / "hub")))
    with pytest.raises(DataError, match="has no 'sentence2'; there are sentence1"):
        list(files.rows("train"))
    bad.write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match="is no whole parquet file"):
        list(files.rows("train"))


def test_figures_by_hand():
    gold, found = [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]
    # 2 true positives, 1 false positive, 1 false negative, 2 true negatives.
    assert compute_metrics(("accuracy", "f1", "matthews"), gold, found) == {
        "accuracy": pytest.approx(100 * 4 / 6),
        "f1": pytest.approx(100 * 2 / 3),
        "matthews": pytest.approx(100 * (2 * 2 - 1 * 1) / 9),  # sqrt(3 * 3 * 3 * 3) below
    }
    assert compute_metrics(("f1", "matthews"), [0, 0], [0, 0]) == {"f1": 0.0, "matthews": 0.0}


@pytest.mark.parametrize(
    ("sizes", "limit", "kept"),
    [((3, 4), 7, (3, 4)), ((3, 9), 7, (3, 4)), ((9, 3), 7, (4, 3)), ((9, 9), 7, (4, 3)),
     ((9, 9), 6, (3, 3)), ((1, 9), 3, (1, 2)), ((0, 9), 3, (0, 3))],
)  # fmt: skip
def test_pairs_are_cut_longest_first(sizes, limit, kept):
    first, second = ([list(range(k, k + 1)) for k in range(n)] for n in sizes)
    a, b, was_cut = cut_pair(first, second, limit)
    assert (length(a), length(b)) == kept
    assert was_cut == (kept != sizes)
    assert a == first[: kept[0]]


def test_texts_become_sentences_with_cls_and_end(tmp_path, model_folder):
    write_tsv(tmp_path, "rte")
    reader = TextReader(model_folder("gpst"))
    task = GlueTask(GlueConfig(task="rte", path=str(tmp_path)), reader, 64)
    spell = reader.tokenizer.reference().decode
    rows = [Row(("The dog barks. A cat\n sleeps.", "It rains."), 0, "0"), Row(("a b", ""), 1, "1")]
    (first, second), num_cut = task.encode(rows)
    assert [spell(s, skip_special_tokens=False) for s in first] == [
        "The dog barks.", " A cat sleeps.", " It rains.", "<|endoftext|>", "<|endoftext|>",
    ]  # fmt: skip
    assert [spell(s) for s in second[:-2]] == ["a b"]
    assert num_cut == 0
    short = GlueTask(GlueConfig(task="rte", path=str(tmp_path)), reader, 12)
    (first, _), num_cut = short.encode(rows)
    assert num_cut == 1
    assert length(first) == 12


ALONE: Any = SimpleNamespace(rank=0, size=1, is_main=True, gather=lambda own: [own])
SUBMISSIONS = {
    "cola": {"CoLA.tsv": "01"},
    "sst2": {"SST-2.tsv": "01"},
    "mrpc": {"MRPC.tsv": "01"},
    "qqp": {"QQP.tsv": "01"},
    "qnli": {"QNLI.tsv": ("entailment", "not_entailment")},
    "rte": {"RTE.tsv": ("entailment", "not_entailment")},
    "mnli": dict.fromkeys(
        ("MNLI-m.tsv", "MNLI-mm.tsv"), ("entailment", "neutral", "contradiction")
    ),
}


class Counting(Classifier):
    """Says class 0 for the first text that it is asked about, 1 for the next, and so on."""

    def __init__(self, num_labels: int) -> None:
        torch.nn.Module.__init__(self)
        self.num_labels, self.asked = num_labels, 0

    def predict(self, texts):
        first, self.asked = self.asked, self.asked + len(texts)
        return (torch.arange(first, self.asked)) % self.num_labels


@pytest.mark.parametrize("task", list(LAYOUTS))
def test_files_for_the_server_have_its_names_and_labels(tmp_path, model_folder, task):
    own = write_tsv(tmp_path, task)
    for split in LAYOUTS[task].test:
        file = own / f"{split}.tsv"
        header, row = file.read_text().splitlines()
        rows = [f"{index}{row.removeprefix('0')}" for index in (0, 1, 7)]
        file.write_text("\n".join([header, *rows]) + "\n")
    made = GlueTask(GlueConfig(task=task, path=str(tmp_path)), TextReader(model_folder("gpst")), 64)
    model = Counting(len(LAYOUTS[task].classes))
    found = made.finish(model, ALONE, tmp_path)
    assert found is not None
    assert found["submission"] == list(SUBMISSIONS[task])

    asked = len(LAYOUTS[task].dev)
    for name, labels in SUBMISSIONS[task].items():
        lines = [line.split("\t") for line in (tmp_path / name).read_text().splitlines()]
        assert lines[0] == ["index", "prediction"]
        assert [index for index, _ in lines[1:]] == ["0", "1", "7"]
        assert [k for _, k in lines[1:]] == [labels[(asked + n) % len(labels)] for n in range(3)]
        asked += 3


def test_mnli_has_a_score_for_each_dev_set(tmp_path, model_folder):
    write_tsv(tmp_path, "mnli")
    reader = TextReader(model_folder("gpst"))
    made = GlueTask(GlueConfig(task="mnli", path=str(tmp_path)), reader, 64)
    model = Counting(2)
    model.asked = 1
    # Class 1 is right for the matched item (neutral), 0 wrong for the other (contradiction).
    values = made.evaluation()(model, ALONE)
    assert values == {
        "eval/accuracy/matched": 100.0, "eval/accuracy/mismatched": 0.0, "eval/score": 50.0
    }  # fmt: skip
