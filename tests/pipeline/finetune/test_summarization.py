"""Summarization: readers, truncation, ROUGE by hand, decoding, a whole fine-tune."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer

from pipeline.errors import ConfigError, DataError
from pipeline.finetune.summarization.config import SummarizationConfig
from pipeline.finetune.summarization.decode import write_summaries
from pipeline.finetune.summarization.read import COLUMNS, Pair, SummaryFiles
from pipeline.finetune.summarization.rouge import mean_rouge, rouge
from pipeline.finetune.summarization.task import SummarizationTask
from pipeline.finetune.text import TextReader, length

PAIRS = [Pair("A dog ran.\nIt barked.", "A dog."), Pair("Rain fell all day.", "It rained.")]


def write_files(folder: Path, dataset: str, form: str, pairs=PAIRS) -> Path:
    document, summary = COLUMNS[dataset]
    own = folder / "data" if form == "data/parquet" else folder
    own.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation", "test"):
        rows = [
            {"id": str(k), document: p.document, summary: p.summary} for k, p in enumerate(pairs)
        ]
        if form == "jsonl":
            (own / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        elif form == "jsonl.gz":
            with gzip.open(own / f"{split}.jsonl.gz", "wt") as file:
                file.writelines(json.dumps(r) + "\n" for r in rows)
        else:
            pq.write_table(pa.Table.from_pylist(rows), own / f"{split}-00000-of-00001.parquet")
    return folder


def section(path: Path, **changes) -> SummarizationConfig:
    return SummarizationConfig(**{"dataset": "xsum", "path": str(path), **changes})


@pytest.mark.parametrize("dataset", list(COLUMNS))
@pytest.mark.parametrize("form", ["parquet", "data/parquet", "jsonl", "jsonl.gz"])
def test_files_are_read_with_their_columns(tmp_path, dataset, form):
    write_files(tmp_path, dataset, form)
    files = SummaryFiles(section(tmp_path, dataset=dataset))
    assert len(files.files()) == 3
    assert list(files.pairs("test")) == PAIRS
    assert list(files.pairs("train", 1)) == PAIRS[:1]


def test_data_sets_are_loaded_by_name(monkeypatch):
    import datasets

    def load(name, subset, split):
        assert (name, subset, split) == ("abisee/cnn_dailymail", "3.0.0", "test")
        return datasets.Dataset.from_dict({"article": ["a"], "highlights": ["b"], "id": ["0"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    own = SummarizationConfig("cnn_dailymail", "datasets:abisee/cnn_dailymail", "3.0.0")
    assert list(SummaryFiles(own).pairs("test")) == [Pair("a", "b")]


def test_faults_are_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        SummaryFiles(section(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"has no train\.parquet, train-\*\.parquet"):
        SummaryFiles(section(tmp_path))
    write_files(tmp_path, "xsum", "jsonl")
    with pytest.raises(
        DataError, match=r"train\.jsonl:1: has no 'article'; there are id, document"
    ):
        list(SummaryFiles(section(tmp_path, dataset="cnn_dailymail")).pairs("train"))
    (tmp_path / "test.jsonl").write_text('{"document": "a", "summary": null}\n')
    with pytest.raises(DataError, match="test, row 0: summary is None, no text"):
        list(SummaryFiles(section(tmp_path)).pairs("test"))
    (tmp_path / "test.jsonl").write_text('{"document": "a", "summary": "b"}\n[1\n')
    with pytest.raises(DataError, match=r"test\.jsonl:2: the line is no JSON object"):
        list(SummaryFiles(section(tmp_path)).pairs("test"))
    (tmp_path / "test.jsonl").unlink()
    (tmp_path / "test.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"test\.jsonl\.gz: cannot be read"):
        list(SummaryFiles(section(tmp_path)).pairs("test"))


def test_rouge_by_hand():
    # "cats" and "cat" have one stem. Common: the, cat, sat: 3 of 4 and 3 of 6 words.
    # Pairs: "the cat", "cat sat": 2 of 3 and 2 of 5. Longest common subsequence: the cat sat.
    [score] = rouge(["the cats sat on the mat"], ["the cat sat down"])
    assert score == {
        "ROUGE-1": pytest.approx(100 * 2 * (3 / 4) * (3 / 6) / (3 / 4 + 3 / 6)),
        "ROUGE-2": pytest.approx(100 * 2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5)),
        "ROUGE-L": pytest.approx(100 * 2 * (3 / 4) * (3 / 6) / (3 / 4 + 3 / 6)),
    }
    # The other order: all words, no pair, one word in order.
    [turned] = rouge(["a b c"], ["c b a"])
    assert list(turned.values()) == pytest.approx([100.0, 0.0, 100 / 3])
    same, none = rouge(["x y", "x y"], ["X y.", "z"])
    assert mean_rouge([same, none]) == {"ROUGE-1": 50.0, "ROUGE-2": 50.0, "ROUGE-L": 50.0}
    assert rouge(["x"], [""])[0]["ROUGE-1"] == 0.0


def test_rouge_is_that_of_rouge_score_and_lsum_goes_by_sentences():
    references = ["The cat sat.\nA dog ran home.", "One line. Two."]
    summaries = ["A dog ran. The cat sat down.", "Two. One line."]

    def sentences(text: str) -> list[str]:
        return [part.strip() for part in text.split(". ")]

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    lines = ["A dog ran\nThe cat sat down.", "Two\nOne line."]
    golden = ["The cat sat.\nA dog ran home.", "One line\nTwo."]
    for found, reference, summary in zip(
        rouge(references, summaries, sentences), golden, lines, strict=True
    ):
        for key, score in scorer.score(reference, summary).items():
            name = key.replace("rouge", "ROUGE-")
            assert found.pop(name) == pytest.approx(100 * score.fmeasure)
        assert found == {}
    first, second = rouge(references, summaries, sentences)
    # By hand: all of "the cat sat" and 3 of 4 words of the other sentence, 6 of 7 and of 7 words.
    assert first["ROUGE-Lsum"] == pytest.approx(100 * 6 / 7)
    assert second["ROUGE-Lsum"] == pytest.approx(100)
    assert second["ROUGE-L"] < 70
    assert "ROUGE-Lsum" not in rouge(references, summaries)[0]


def test_documents_and_summaries_are_cut_to_their_first_tokens(tmp_path, model_folder):
    write_files(tmp_path, "xsum", "jsonl")
    reader = TextReader(model_folder("gpst"))
    own = section(tmp_path, document_tokens=16, summary_tokens=6)
    task = SummarizationTask(own, reader, 64)
    spell = reader.tokenizer.reference().decode
    first, second = task.examples()["train"]
    assert [spell(s) for s in first.sentences] == ["A dog ran.", " It bark", " Summary: A dog."]
    mark = length(reader.read([" Summary:"], goes_on=True)[0])
    assert length(first.sentences) == 16 + mark + 6
    assert task.counters == {"documents_cut": 1, "summaries_cut": 1}
    assert length(second.sentences) == 15 + mark + 6
    with pytest.raises(ConfigError, match=r"document_tokens 60 .* \(max_context_tokens 64\)"):
        SummarizationTask(section(tmp_path, document_tokens=60, summary_tokens=6), reader, 64)


@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
@pytest.mark.parametrize(
    "changes", [{}, {"sync": False}, {"decoding": "beam"}, {"decoding": "beam", "sync": False}]
)
def test_every_way_to_decode_writes_at_most_so_many_tokens(tiny_gpst, tiny_gpt2, kind, changes):
    model = tiny_gpst(30) if kind == "gpst" else tiny_gpt2(30)
    prompts = [[[3, 4, 5], [6, 7]], [[8]]]
    own = section(Path("."), summary_tokens=5, beam=3, **changes)
    found = write_summaries(model, prompts, [1, 2], own, [4], 0)
    assert len(found) == 2
    assert all(len(words) <= 5 and 0 not in words for words in found)
    assert found == write_summaries(model, prompts, [1, 2], own, [4], 0)
    # What a text becomes does not depend on its batch.
    assert found[1:] == write_summaries(model, prompts[1:], [2], own, [4], 0)


def test_gpt2_draws_what_its_uncached_passes_say(tiny_gpt2):
    model = tiny_gpt2(30)
    own = section(Path("."), summary_tokens=4, top_k=1)
    prompts = [[[3, 4, 5], [6, 7]], [[8]]]
    found = write_summaries(model, prompts, [1, 2], own, [], 29)
    for prompt, words in zip(prompts, found, strict=True):
        read = [token for sentence in prompt for token in sentence]
        for word in words:
            with torch.no_grad():
                logits = model.gpt2(input_ids=torch.tensor([[0, *read]])).logits[0, -1]
            assert word == int(logits.argmax())
            read.append(word)


def toy_pairs(count: int, seed: int) -> list[Pair]:
    """Documents of two kinds of words; the summary says which."""
    source = random.Random(seed)
    kinds = [source.randrange(2) for _ in range(count)]
    return [
        Pair(
            " ".join(source.choice(("ace", "bdf")[kind]) for _ in range(4)) + ".", f"{'xy'[kind]}."
        )
        for kind in kinds
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_a_whole_fine_tune(tmp_path, model_folder, finetune, kind):
    write_files(tmp_path / "data", "xsum", "jsonl", toy_pairs(300, 0))
    (tmp_path / "data" / "test.jsonl").write_text(
        "".join(
            json.dumps({"document": p.document, "summary": p.summary}) + "\n"
            for p in toy_pairs(20, 1)
        )
    )
    config = tmp_path / "toy.yaml"
    config.write_text(
        json.dumps(
            {
                "run_dir": str(tmp_path / "run"),
                "init": str(model_folder(kind)),
                "summarization": {
                    "dataset": "xsum",
                    "path": str(tmp_path / "data"),
                    "document_tokens": 20,
                    "summary_tokens": 4,
                    "top_k": 1,
                    "beam": 4,
                },
                "train": {
                    "num_epochs": 8,
                    "global_batch_contexts": 16,
                    "micro_batch_contexts_per_rank": 16,
                },
                "optim": {"learning_rate": 5e-3, "parser_learning_rate": 5e-3},
                "monitor": {"log_every_steps": 20},
            }
        )
    )
    done = finetune(config)
    assert done.returncode == 0, done.stderr
    assert "ROUGE-L" in done.stdout
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    seed = tmp_path / "run" / "seed-0"
    lines = [json.loads(line) for line in (seed / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 20
    again = mean_rouge(rouge([x["reference"] for x in lines], [x["summary"] for x in lines]))
    for name, value in again.items():
        assert results["scores"][name]["mean"] == pytest.approx(value)
    # Guessing would be right in one of two.
    assert results["scores"]["ROUGE-1"]["mean"] >= 80
    metrics = [json.loads(line) for line in (seed / "metrics.jsonl").read_text().splitlines()]
    assert sum("eval/perplexity/token" in line for line in metrics) == 8
