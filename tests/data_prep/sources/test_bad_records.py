"""One bad record costs itself only: trees, WikiText, odd added tokens, packages that panic."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoded import document_texts

from data_prep.build.build import build
from data_prep.build.job import BuildArguments
from data_prep.segment.optional import OptionalSegmenter
from data_prep.segment.segmenters import get_segmenter
from data_prep.sources import parquet, treebank
from data_prep.sources.options import SourceOptions
from data_prep.sources.registry import find_input, get_source
from data_prep.sources.wikitext import detokenize
from data_prep.text.batch import Recorder
from data_prep.tokenizer.load import load_tokenizer

TREES = [f"(S (NP (PRP w{n})) (VP (VBZ runs)))" for n in range(40)]


@pytest.mark.parametrize("longest", [200, 1 << 20])
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_a_tree_that_is_never_closed(tmp_path, read, monkeypatch, longest, chunk):
    monkeypatch.setattr(treebank, "_LONGEST_TREE", longest)
    monkeypatch.setattr(treebank, "CHUNK", chunk)
    lines = list(TREES)
    lines[10], lines[20] = lines[10][:-1], lines[20][:-2]
    (tmp_path / "a.mrg").write_text("\n".join(lines) + "\n")
    documents, recorder = read("treebank", [tmp_path])
    assert documents == [f"w{n} runs" for n in range(40) if n not in (10, 20)]
    assert recorder.counters == {"dropped/bad_tree": 2}
    places = [entry["offset"] for entry in recorder.quarantine]
    assert places == ["\n".join(lines).index(lines[n]) for n in (10, 20)]


def test_a_json_field_that_is_there_but_no_text_is_not_called_missing(tmp_path, read):
    lines = ('{"text": null}', '{"text": 5}', '{"body": "a"}', '{"text": "b"}')
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    documents, recorder = read("jsonl", [tmp_path])
    assert documents == ["b"]
    assert [entry["detail"] for entry in recorder.quarantine] == [
        "field 'text'; it is null",
        "field 'text'; it is of type int",
        "field 'text'; the line has: body",
    ]


def test_trees_whose_inner_lines_are_not_indented(tmp_path, read):
    (tmp_path / "a.mrg").write_text("(S\n(A a)\n(B b)\n)\n(S\n(C c))\n")
    documents, recorder = read("treebank", [tmp_path])
    assert (documents, recorder.counters) == (["a b", "c"], {})


def test_text_between_trees_is_counted(tmp_path, read):
    (tmp_path / "a.mrg").write_text("(S (A a))\nfree text\n(S (B b))\n; comment ) x\n(S (C c)) end")
    documents, recorder = read("treebank", [tmp_path])
    assert documents == ["a", "b", "c"]
    assert recorder.counters == {"dropped/text_outside_trees": 2}
    assert recorder.quarantine[0] == {
        "reason": "text_outside_trees", "file": str(tmp_path / "a.mrg"), "offset": 9,
        "detail": "free text",
    }  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_comments_and_a_byte_order_mark_are_not_text(tmp_path, read, monkeypatch, chunk):
    monkeypatch.setattr(treebank, "CHUNK", chunk)
    text = (
        "\ufeff*x*x*x*\n*x* Copyright (C) 1995 *x*\n(S (A a))\n# (T (B b)\n  ; ) (\n% x\n"
        "(S (C f-LRB-x-RRB-) (D and\\/or) (E #))\n# the (end"
    )
    (tmp_path / "a.ptb").write_text(text, encoding="utf-8")
    documents, recorder = read("treebank", [tmp_path])
    assert (documents, recorder.counters) == (["a", "f(x) and/or #"], {})


def test_a_long_run_of_newlines_is_looked_at_once(tmp_path, read):
    from data_prep.sources import wikitext

    looked = []
    pattern = wikitext._TITLE

    class Counting:
        def finditer(self, data, start):
            looked.append(len(data) - start)
            return pattern.finditer(data, start)

    text = " = A = \n \n a . \n" + "\n" * 300_000 + " = B = \n \n b . \n"
    (tmp_path / "wiki.train.tokens").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wikitext, "_TITLE", Counting())
        documents, _ = read("wikitext", [tmp_path])
    assert [d.strip().split(" ")[1] for d in documents] == ["A", "B"]
    assert sum(looked) < 5 * len(text)


def test_a_title_needs_a_blank_line_before_it(tmp_path, read):
    text = "\n = A = \n \n words \n = No title = \n more \n \t\n = B = \n b \n"
    (tmp_path / "wiki.train.tokens").write_text(text)
    documents, _ = read("wikitext", [tmp_path])
    assert [d.strip()[:5] for d in documents if d.strip()] == ["= A =", "= B ="]


@pytest.mark.parametrize("text", ["irmã mais", "Ngã tư", "飣 x", "Â b"])
def test_detokenizing_leaves_letters_alone(text):
    assert detokenize(text.encode()).decode() == text
    assert detokenize("£ 5 ( a".encode()).decode() == "£5 (a"


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip"])
def test_added_tokens_with_rules_of_their_own(tmp_path, bpe_path, flag):
    values = json.loads((bpe_path / "tokenizer.json").read_text())
    number = max(values["model"]["vocab"].values()) + 1
    token = {"id": number, "content": "zq", "special": False, "normalized": False}
    token |= {name: name == flag for name in ("single_word", "lstrip", "rstrip")}
    values["added_tokens"].append(token)
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text(json.dumps(values))
    text = "A zq b. The zqzq is zq , here zq."
    (tmp_path / "a.txt").write_text(text)
    arguments = BuildArguments(source="text", validation_fraction=0.0)
    dataset = build([str(tmp_path / "a.txt")], tmp_path / "tok", tmp_path / "out", arguments)
    loaded = load_tokenizer(tmp_path / "tok", end_of_document="<|endoftext|>")
    expected = loaded.reference().encode(text, add_special_tokens=False).ids
    ids = np.concatenate([np.asarray(shard.tokens) for shard in dataset.shards("train")])
    assert ids[:-1].tolist() == expected


class Panic(BaseException):
    """What PyO3 raises for a panic of Rust code derives from this too."""


def test_a_segmenter_that_panics_on_a_paragraph(tmp_path, bpe_path, monkeypatch):
    def ends_of(text):
        if "bad" in text:
            raise Panic("at the disco")
        return [8, len(text)]

    segmenter = OptionalSegmenter("punkt", "0", ends_of)
    monkeypatch.setattr("data_prep.build.unit.get_segmenter", lambda name, language: segmenter)
    (tmp_path / "a.txt").write_text("It is a. The end.\n\nA bad. One.\n\nIt is a. The end.")
    arguments = BuildArguments(source="text", segmenter="punkt", validation_fraction=0.0)
    dataset = build([str(tmp_path / "a.txt")], bpe_path, tmp_path / "out", arguments)
    assert dataset.manifest.counters["paragraphs_not_segmented"] == 1
    (sentences,) = document_texts(dataset)
    assert [s.strip() for s in sentences] == [
        "It is a.", "The end.", "A bad. One.", "It is a.", "The end.",
    ]  # fmt: skip


def test_an_interrupt_in_a_segmenter_is_one():
    def ends_of(text):
        raise KeyboardInterrupt

    data = np.frombuffer(b"a b", np.uint8)
    with pytest.raises(KeyboardInterrupt):
        OptionalSegmenter("punkt", "0", ends_of).cut(data, np.array([3]))
    assert get_segmenter("fast").cut(data, np.array([3]))[0].tolist() == [3]


def test_json_lines_after_a_byte_order_mark(tmp_path, read):
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "One."}\n{"text": "Two."}\n')
    documents, recorder = read("jsonl", [tmp_path])
    assert documents == ["One.", "Two."]
    assert not recorder.quarantine


def test_rows_of_parquet_have_their_numbers(tmp_path, monkeypatch):
    """In batches and row groups that come later too, with nulls between."""
    monkeypatch.setattr(parquet, "BATCH_BYTES", 64)
    texts = [None if n % 5 == 3 else f"Text {n}. " * 3 for n in range(40)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=25, use_dictionary=False)
    source, recorder = get_source("parquet"), Recorder()
    parts = source.parts(find_input(source, [str(path)]), SourceOptions())
    batches = [b for p in parts for b in source.read(p, SourceOptions(), recorder)]
    assert len(batches) > 4
    rows = [place for batch in batches for place in batch.places.tolist()]
    assert rows == [n for n, text in enumerate(texts) if text]
    assert [entry["offset"] for entry in recorder.quarantine] == [3, 8, 13, 18, 23, 28, 33, 38]
