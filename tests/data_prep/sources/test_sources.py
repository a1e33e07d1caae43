"""Every source, on small files in the real layout; damage is counted and named."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from data_prep.errors import UsageError
from data_prep.sources import ranges
from data_prep.sources.base import InputFile, group_into_units
from data_prep.sources.options import SourceOptions
from data_prep.sources.registry import NAMES, get_source
from data_prep.sources.wikitext import detokenize
from data_prep.text.batch import Recorder

PAGES = [f"Page {n}.\n\nA paragraph of page {n}.\n\nAnother one." for n in range(7)]
COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def test_wikitext(tmp_path, read):
    text = (
        " \n = First Title = \n \n Some text @-@ here . \n \n = = Section = = \n \n More . \n"
        " \n = Second : Title = \n \n It 's x = 5 = y . \n = not a title = \n"
    )
    (tmp_path / "wiki.train.tokens").write_text(text)
    documents, _ = read("wikitext", [tmp_path])
    assert len(documents) == 2
    assert documents[0].startswith(" = First Title = \n")
    assert "Section" in documents[0]
    assert documents[1].startswith(" = Second : Title = \n")
    assert "".join(documents) == text.removeprefix(" \n")
    plain, _ = read("wikitext", [tmp_path], detokenize=True)
    assert "Some text-here." in plain[0]
    assert plain[0].startswith("First Title\n")


def test_wikitext_ranges(tmp_path, monkeypatch, read):
    """Articles come out once, whatever the byte ranges are."""
    from data_prep.sources import wikitext

    articles = [f" = Title {n} = \n \n {'Words . ' * (n % 5)}\n \n" for n in range(30)]
    articles[7] += " \t" * 200 + "\n"  # a long blank line before the next title
    (tmp_path / "wiki.test.raw").write_text(" \n" + "".join(articles))
    for size, chunk in ((1, 1 << 20), (13, 64), (100, 7), (10_000, 1)):
        monkeypatch.setattr(ranges, "RANGE_BYTES", size)
        monkeypatch.setattr(wikitext, "CHUNK", chunk)
        monkeypatch.setattr(ranges, "CHUNK", chunk)
        assert read("wikitext", [tmp_path])[0] == articles


@pytest.mark.parametrize("suffix", list(COMPRESS))
def test_wikitext_that_begins_with_a_title(tmp_path, suffix, read):
    articles = [f" = Title {n} = \n \n Words . \n \n" for n in range(9)]
    data = COMPRESS[suffix]("".join(articles).encode())
    (tmp_path / f"wiki.test.raw{suffix}").write_bytes(data)
    assert read("wikitext", [tmp_path])[0] == articles


def test_wikitext_cut_short_while_it_is_read(tmp_path):
    """Said, and no process ends with a bus error, as where a file is mapped."""
    file = tmp_path / "wiki.train.tokens"
    article = f" = Title = \n \n {'Words . ' * 2000}\n \n"
    file.write_text(article * (2 * ranges.RANGE_BYTES // len(article)))
    source, options, recorder = get_source("wikitext"), SourceOptions(), Recorder()
    size = file.stat().st_size
    first, _ = source.parts([InputFile(str(file), size)], options)
    batches = source.read(first, options, recorder)
    next(batches)
    os.truncate(file, size // 4)
    assert sum(len(batch.data) for batch in batches) < size // 4
    assert recorder.counters == {"dropped/truncated_file": 1}
    assert "cut short while it was read" in recorder.quarantine[0]["detail"]


def test_detokenize():
    text = b'He said " no way " ( 3 @.@ 5 % of 1 @,@ 000 ) , it \'s co @-@ op ; fine .'
    assert detokenize(text) == b'He said "no way" (3.5% of 1,000), it\'s co-op; fine.'


@pytest.mark.parametrize("suffix", list(COMPRESS))
def test_text_compressed(tmp_path, suffix, read):
    for number, page in enumerate(PAGES):
        (tmp_path / f"{number}.txt{suffix}").write_bytes(COMPRESS[suffix](page.encode()))
    assert read("text", [tmp_path])[0] == PAGES
    assert read("text", [tmp_path / "*.txt*"])[0] == PAGES
    blocks = read("text", [tmp_path], split_blank_lines=True)[0]
    assert [b.strip() for b in blocks] == [b for page in PAGES for b in page.split("\n\n")]


def test_several_frames(tmp_path, read):
    """Compressed files put one after another are read to the end."""
    for suffix, compress in COMPRESS.items():
        parts = [compress(json.dumps({"body": page}).encode() + b"\n") for page in PAGES]
        (tmp_path / f"x.jsonl{suffix}").write_bytes(b"".join(parts))
    assert read("jsonl", [tmp_path], text_field="body")[0] == PAGES * len(COMPRESS)


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_truncated_streams(tmp_path, suffix, read):
    import random

    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefgh ", k=200)) for _ in range(3000)]
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    whole = COMPRESS[suffix](lines.encode())
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    documents, recorder = read("jsonl", [path])
    assert documents == texts[: len(documents)]
    assert suffix in (".zst", ".bz2") or len(documents) > 500  # which have large blocks
    assert recorder.counters == {"dropped/truncated_archive": 1}
    damaged = bytearray(whole)
    damaged[len(damaged) // 2 : len(damaged) // 2 + 64] = b"\xff" * 64
    path.write_bytes(damaged)
    documents, recorder = read("jsonl", [path])
    assert documents == texts[: len(documents)]
    assert len(documents) < len(texts)
    assert recorder.counters == {"dropped/damaged_archive": 1}


@pytest.mark.parametrize("size", [1, 7, 50, 300, 10_000])
def test_byte_ranges_cover_everything_once(tmp_path, monkeypatch, size, read):
    texts = [f"Number {n} {'é' * (n % 40)}." for n in range(60)]
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
    )
    (tmp_path / "x.txt").write_text("\n\n".join(texts) + "\n \n\r\n\n")
    monkeypatch.setattr(ranges, "RANGE_BYTES", size)
    assert read("jsonl", [tmp_path / "x.jsonl"])[0] == texts
    blocks, _ = read("text", [tmp_path / "x.txt"], split_blank_lines=True)
    assert [b.strip() for b in blocks] == texts


def test_parquet(tmp_path, read):
    texts = [*PAGES, None, "", "é日😀"]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = pa.table({"n": range(len(texts)), "text": pa.array(texts, pa.string()).cast(kind)})
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
        documents, recorder = read("parquet", [tmp_path])
        assert documents == [t for t in texts if t is not None]
        assert recorder.quarantine == [
            {"reason": "missing_text_field", "file": str(tmp_path / "x.parquet"), "offset": 7}
        ]
    with pytest.raises(UsageError, match="no column 'body', only n, text"):
        read("parquet", [tmp_path], text_field="body")
    with pytest.raises(UsageError, match="column 'n' is int64, not text"):
        read("parquet", [tmp_path], text_field="n")
    path = tmp_path / "x.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert read("parquet", [path])[1].counters == {"dropped/damaged_file": 1}


def test_parquet_of_repeats_comes_in_small_batches(tmp_path):
    """A megabyte 200 times is little more than a megabyte in the file."""
    path, long, short = tmp_path / "x.parquet", "ab 日" * 166_666, "Short."
    texts = [short, None, *[long] * 100, short, *[long] * 100, None]
    pq.write_table(pa.table({"text": texts}), path)
    assert path.stat().st_size < 2_000_000
    source, options, recorder = get_source("parquet"), SourceOptions(), Recorder()
    [part] = source.parts([InputFile(str(path), path.stat().st_size)], options)
    documents = {text.encode(): text for text in (long, short)}  # they are compared, not kept
    found = {}
    for batch in source.read(part, options, recorder):
        assert (batch.ends - batch.starts).sum() <= ranges.BATCH_BYTES
        assert len(batch.data) < 40 << 20  # what is decoded at a time, of 200 MB in all
        for start, end, row in zip(batch.starts, batch.ends, batch.places.tolist(), strict=True):
            found[row] = documents[batch.data[start:end].tobytes()]
    assert found == {row: text for row, text in enumerate(texts) if text is not None}
    assert list(found) == sorted(found)
    assert [entry["offset"] for entry in recorder.quarantine] == [1, len(texts) - 1]


def test_parquet_of_repeats_builds_as_without_a_dictionary(tmp_path, bpe_path):
    from data_prep.build.build import build
    from data_prep.build.job import BuildArguments

    texts = [f"Text {n}. " + "It was so. " * 60_000 for n in (0, 1, 0, 1, 1)] * 2
    arguments = BuildArguments("parquet", validation_fraction=0.0, unit_bytes=1)
    built = []
    for name, dictionary in (("a", True), ("b", False)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"text": texts}), path, row_group_size=8, use_dictionary=dictionary)
        built.append(build([str(path)], bpe_path, tmp_path / name, arguments).manifest)
    assert built[0].counters["documents"] == 10
    assert built[0].counters == built[1].counters
    assert built[0].fingerprint == built[1].fingerprint  # of the bytes of all shards


@pytest.mark.filterwarnings("ignore")  # of datasets' own dependencies
def test_huggingface_local(tmp_path, read):
    import datasets

    folder = tmp_path / "data"
    folder.mkdir()
    for name, pages in (("a", PAGES[:4]), ("b", PAGES[4:])):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": p}) + "\n" for p in pages)
        )
    assert read("hf", [folder])[0] == PAGES
    with pytest.raises(UsageError, match=r"hf dataset .* cannot be opened"):
        read("hf", [folder], hf_split="no-such-split")
    datasets.Dataset.from_dict({"text": PAGES}).save_to_disk(tmp_path / "saved")
    assert read("hf", [tmp_path / "saved"])[0] == PAGES
    with pytest.raises(UsageError, match="no column 'body', only text"):
        read("hf", [tmp_path / "saved"], text_field="body")


def test_treebank(tmp_path, read):
    trees = (
        "( (S (NP-SBJ (NNP Mr.) (NNP Vinken)) (VP (VBZ is)\n  (NP (-NONE- *T*-1)) "
        "(-LRB- -LRB-) (NN chairman) (-RRB- -RRB-)) (. .)) )\n\n(S (NP (PRP He)) (VP (VBZ runs)))\n"
        "(X (Y a b))\n(S (A Go) (. !))"
    )
    (tmp_path / "wsj_0001.mrg").write_text(trees)
    documents, recorder = read("treebank", [tmp_path])
    assert documents == ["Mr. Vinken is ( chairman ) .", "He runs", "Go !"]
    assert recorder.counters == {"dropped/bad_tree": 1}
    (tmp_path / "wsj_0001.mrg").write_text("(S (A a)) ) (S (B b)) (S (C c)")
    documents, recorder = read("treebank", [tmp_path])
    assert documents == ["a", "b"]
    assert recorder.counters == {"dropped/bad_tree": 2}


def test_treebank_builds_a_sentence_a_tree(tmp_path, bpe_path):
    from decoded import document_texts

    from data_prep.build.build import build
    from data_prep.build.job import BuildArguments

    (tmp_path / "x.mrg").write_text("(S (A Dr.) (B It) (C is) (. .) (D The) (E end))\n(S (A One))")
    arguments = BuildArguments(source="treebank", validation_fraction=0.0)
    dataset = build([str(tmp_path / "x.mrg")], bpe_path, tmp_path / "out", arguments)
    assert list(document_texts(dataset)) == [["Dr. It is . The end"], ["One"]]
    assert dataset.manifest.segmenter["name"] == "none"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "hf"])
def test_empty_and_strange_files(name, tmp_path, read):
    """No source that reads files itself stops at, or is silent about, what they should not be."""
    suffix = get_source(name).suffixes[0]
    for content in (b"", b"\0" * 3000, b"\xff\xfe\x00", b"(((", b"PAR1PAR1"):
        (tmp_path / f"good{suffix}").write_bytes(b"x")  # so that the input is not all empty
        (tmp_path / f"odd{suffix}").write_bytes(content)
        documents, recorder = read(name, [tmp_path])
        assert documents or recorder.quarantine


def test_documents_one_by_one_become_batches():
    documents = [(place, b"x" * size) for place, size in enumerate([5, 0, ranges.BATCH_BYTES, 3])]
    found = list(ranges.in_batches(iter(documents), "f"))
    assert [batch.places.tolist() for batch in found] == [[0, 1, 2], [3]]
    assert [(b.ends - b.starts).tolist() for b in found] == [[5, 0, ranges.BATCH_BYTES], [3]]
    assert list(ranges.in_batches([], "f")) == []


def test_units_group_parts():
    from data_prep.sources.base import Part

    parts = [Part(str(n), weight) for n, weight in enumerate([5, 5, 20, 1, 1, 8, 3])]
    units = group_into_units(parts, 10)
    assert [[p.path for p in u.parts] for u in units] == [["0", "1"], ["2"], ["3", "4", "5"], ["6"]]
    assert [u.index for u in units] == [0, 1, 2, 3]
    assert [u.weight for u in units] == [10, 20, 10, 3]


@pytest.mark.parametrize("kind", ["string_view", "large_binary", "binary_view", "large_string"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_parquet_of_every_type_of_text(kind, dictionary, tmp_path, read):
    texts = ["One. Ünd.", None, "", "Two " * 20, "One. Ünd."]
    column = pa.array([None if t is None else t.encode() for t in texts])
    column = column if "binary" in kind else column.cast(pa.string())
    column = column.cast(getattr(pa, kind)())
    if dictionary and "view" not in kind:  # Arrow has no dictionaries of views
        column = column.dictionary_encode()
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    documents, recorder = read("parquet", [tmp_path])
    assert documents == [t for t in texts if t is not None]
    assert recorder.counters == {"dropped/missing_text_field": 1}


def test_parquet_without_any_text_in_one_file(tmp_path, read):
    pq.write_table(pa.table({"text": pa.nulls(3)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["One."]}), tmp_path / "b.parquet")
    documents, recorder = read("parquet", [tmp_path])
    assert documents == ["One."]
    assert recorder.counters == {"dropped/missing_text_field": 3}
