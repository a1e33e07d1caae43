"""Every source, on small files in the real layout; damage is counted and named."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.batch import RawBatch, Recorder
from data_prep.errors import UsageError
from data_prep.sources import NAMES, find_input, get_source, ranges
from data_prep.sources.archive import read_members
from data_prep.sources.base import SourceOptions, group_into_units
from data_prep.sources.wikitext import detokenize

PAGES = [f"Page {n}.\n\nA paragraph of page {n}.\n\nAnother one." for n in range(7)]
COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def read(name, inputs, tmp_path, **options):
    """(documents as the source gives them, recorder)."""
    source, recorder = get_source(name), Recorder()
    values = SourceOptions(**options)
    files = find_input(source, [str(path) for path in inputs])
    documents = []
    for part in source.plan(files, values, tmp_path / "scratch"):
        for batch in source.read(part, values, recorder):
            assert len(batch.places) == len(batch.starts) == len(batch.ends)
            for start, end in zip(batch.starts.tolist(), batch.ends.tolist(), strict=True):
                documents.append(batch.data[start:end].tobytes().decode("utf-8", "replace"))
    return documents, recorder


def tar_of(members, kind=tarfile.GNU_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def pages_tar(first, last, kind=tarfile.GNU_FORMAT):
    return tar_of([(f"{n:07d}-ab.txt", PAGES[n].encode()) for n in range(first, last)], kind)


@pytest.fixture
def release(tmp_path):
    """The original layout: openwebtext/urlsf_subsetNN-MM_data.xz."""
    folder = tmp_path / "openwebtext"
    folder.mkdir()
    for number, (first, last) in enumerate([(0, 3), (3, 4), (4, 7)]):
        path = folder / f"urlsf_subset00-{number}_data.xz"
        path.write_bytes(lzma.compress(pages_tar(first, last)))
    return folder


def outer_tar(release):
    members = [(f"openwebtext/{p.name}", p.read_bytes()) for p in sorted(release.iterdir())]
    return tar_of([("openwebtext/readme.txt", b"not a page of text"), *members])


def test_openwebtext_as_released(tmp_path, release):
    documents, recorder = read("openwebtext", [release], tmp_path)
    assert documents == PAGES
    assert not recorder.quarantine


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_openwebtext_plain_tar(tmp_path, kind):
    (tmp_path / "pages.tar").write_bytes(pages_tar(0, 7, kind))
    assert read("openwebtext", [tmp_path / "pages.tar"], tmp_path)[0] == PAGES


def test_openwebtext_unpacked(tmp_path):
    folder = tmp_path / "openwebtext" / "urlsf_subset00-1_data"
    folder.mkdir(parents=True)
    for number, page in enumerate(PAGES):
        (folder / f"{number:07d}-ab.txt").write_text(page)
    assert read("openwebtext", [folder.parent], tmp_path)[0] == PAGES


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_openwebtext_outer(tmp_path, release, suffix):
    path = tmp_path / f"openwebtext.tar{suffix}"
    path.write_bytes(COMPRESS[suffix](outer_tar(release)))
    documents, recorder = read("openwebtext", [path], tmp_path)
    assert documents == PAGES
    assert not recorder.quarantine


def test_openwebtext_truncated(tmp_path, release):
    """The whole pages before the damage come out; the rest is named."""
    path = release / "urlsf_subset00-0_data.xz"
    data = b"".join(f"{n:06d}".encode() * 100 for n in range(3000))
    whole = lzma.compress(tar_of([("a.txt", b"first page"), ("b.txt", data)]))
    path.write_bytes(whole[: len(whole) // 2])
    documents, recorder = read("openwebtext", [path], tmp_path)
    assert documents == ["first page"]
    assert recorder.counters["dropped/truncated_archive"] == 1
    assert recorder.quarantine[0]["file"] == str(path)


def test_openwebtext_not_an_archive(tmp_path):
    (tmp_path / "x.xz").write_bytes(lzma.compress(b"no archive " * 100))
    documents, recorder = read("openwebtext", [tmp_path / "x.xz"], tmp_path)
    assert documents == []
    assert recorder.counters == {"dropped/damaged_archive": 1}


def test_openwebtext_member_too_large(tmp_path, monkeypatch):
    from data_prep.sources import openwebtext

    monkeypatch.setattr(openwebtext, "MAX_DOCUMENT_BYTES", 1000)
    data = tar_of([("a.txt", b"a"), ("big.txt", b"x" * 3_000_000), ("c.txt", b"c")])
    (tmp_path / "x.tar").write_bytes(data)
    documents, recorder = read("openwebtext", [tmp_path / "x.tar"], tmp_path)
    assert documents == ["a", "c"]
    assert recorder.quarantine[0]["detail"] == "big.txt"


@settings(deadline=None, max_examples=50)
@given(
    names=st.lists(st.text("abc/é", min_size=1, max_size=200), min_size=1, max_size=4),
    sizes=st.lists(st.sampled_from([0, 1, 511, 512, 513, 5000]), min_size=4, max_size=4),
    kind=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_tar_reader_equals_tarfile(names, sizes, kind):
    members = [(n.strip("/") or "x", bytes([65 + k]) * sizes[k]) for k, n in enumerate(names)]
    found = read_members(io.BytesIO(tar_of(members, kind)), 1 << 20)
    assert [(m.name, m.buffer[m.start : m.stop]) for m in found] == members


def test_wikitext(tmp_path):
    text = (
        " \n = First Title = \n \n Some text @-@ here . \n \n = = Section = = \n \n More . \n"
        " \n = Second : Title = \n \n It 's x = 5 = y . \n = not a title = \n"
    )
    (tmp_path / "wiki.train.tokens").write_text(text)
    documents, _ = read("wikitext", [tmp_path], tmp_path)
    assert len(documents) == 2
    assert documents[0].startswith(" = First Title = \n")
    assert "Section" in documents[0]
    assert documents[1].startswith(" = Second : Title = \n")
    assert "".join(documents) == text.removeprefix(" \n")
    plain, _ = read("wikitext", [tmp_path], tmp_path, detokenize=True)
    assert "Some text-here." in plain[0]
    assert plain[0].startswith("First Title\n")


def test_wikitext_ranges(tmp_path, monkeypatch):
    """Articles come out once, whatever the byte ranges are."""
    from data_prep.sources import wikitext

    articles = [f" = Title {n} = \n \n {'Words . ' * (n % 5)}\n \n" for n in range(30)]
    (tmp_path / "wiki.test.raw").write_text(" \n" + "".join(articles))
    for size in (1, 13, 100, 10_000):
        monkeypatch.setattr(wikitext, "RANGE_BYTES", size)
        assert read("wikitext", [tmp_path], tmp_path)[0] == articles


def test_detokenize():
    text = b'He said " no way " ( 3 @.@ 5 % of 1 @,@ 000 ) , it \'s co @-@ op ; fine .'
    assert detokenize(text) == b'He said "no way" (3.5% of 1,000), it\'s co-op; fine.'


@pytest.mark.parametrize("suffix", list(COMPRESS))
def test_text_compressed(tmp_path, suffix):
    for number, page in enumerate(PAGES):
        (tmp_path / f"{number}.txt{suffix}").write_bytes(COMPRESS[suffix](page.encode()))
    assert read("text", [tmp_path], tmp_path)[0] == PAGES
    assert read("text", [tmp_path / "*.txt*"], tmp_path)[0] == PAGES
    blocks = read("text", [tmp_path], tmp_path, split_blank_lines=True)[0]
    assert [b.strip() for b in blocks] == [b for page in PAGES for b in page.split("\n\n")]


@pytest.mark.parametrize("suffix", list(COMPRESS))
def test_jsonl_compressed(tmp_path, suffix):
    lines = "".join(json.dumps({"body": page}) + "\n" for page in PAGES)
    (tmp_path / f"x.jsonl{suffix}").write_bytes(COMPRESS[suffix](lines.encode()))
    assert read("jsonl", [tmp_path], tmp_path, text_field="body")[0] == PAGES


def test_several_frames(tmp_path):
    """Compressed files put one after another are read to the end."""
    for suffix in (".gz", ".xz", ".zst"):
        parts = [COMPRESS[suffix](json.dumps({"text": p}).encode() + b"\n") for p in PAGES]
        (tmp_path / f"x.jsonl{suffix}").write_bytes(b"".join(parts))
    assert read("jsonl", [tmp_path], tmp_path)[0] == PAGES * 3


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_truncated_streams(tmp_path, suffix):
    import random

    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefgh ", k=200)) for _ in range(3000)]
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    whole = COMPRESS[suffix](lines.encode())
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    documents, recorder = read("jsonl", [path], tmp_path)
    assert documents == texts[: len(documents)]
    assert suffix == ".zst" or len(documents) > 500
    assert recorder.counters == {"dropped/truncated_archive": 1}
    damaged = bytearray(whole)
    damaged[len(damaged) // 2 : len(damaged) // 2 + 64] = b"\xff" * 64
    path.write_bytes(damaged)
    documents, recorder = read("jsonl", [path], tmp_path)
    assert len(documents) < len(texts)
    assert sum(recorder.counters.values()) >= 1


@pytest.mark.parametrize("size", [1, 7, 50, 300, 10_000])
def test_byte_ranges_cover_everything_once(tmp_path, monkeypatch, size):
    from data_prep.sources import jsonl, text

    texts = [f"Number {n} {'é' * (n % 40)}." for n in range(60)]
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
    )
    (tmp_path / "x.txt").write_text("\n\n".join(texts) + "\n \n\r\n\n")
    monkeypatch.setattr(jsonl, "RANGE_BYTES", size)
    monkeypatch.setattr(text, "RANGE_BYTES", size)
    assert read("jsonl", [tmp_path / "x.jsonl"], tmp_path)[0] == texts
    blocks, _ = read("text", [tmp_path / "x.txt"], tmp_path, split_blank_lines=True)
    assert [b.strip() for b in blocks] == texts


def test_long_documents_are_cut(tmp_path, monkeypatch):
    """Their pieces are the whole text, in order; the others are left as they are."""
    from data_prep.sources import text

    monkeypatch.setattr(ranges, "MAX_DOCUMENT_BYTES", 1000)
    texts = [b"short", "wörd ".encode() * 2000, b"x" * 2500, b"end"]
    batch, recorder = RawBatch.join(texts, "file", [3, 5, 7, 9]), Recorder()
    pieces: dict[int, list[bytes]] = {}
    for piece in ranges.cut_long_documents(batch, recorder):
        for start, end, place in zip(piece.starts, piece.ends, piece.places, strict=True):
            pieces.setdefault(int(place), []).append(piece.data[start:end].tobytes())
    assert [b"".join(found) for found in pieces.values()] == texts
    assert all(len(p) <= 1000 for found in pieces.values() for p in found)
    assert all(p.endswith(b" ") for p in pieces[5])
    assert recorder.counters == {"documents_cut_too_long": 2}
    # a whole file is cut while it is read
    monkeypatch.setattr(text, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(text, "cut_point", lambda data: ranges.cut_point(data, 1000))
    monkeypatch.setattr(text, "CHUNK", 300)
    (tmp_path / "x.txt").write_bytes(texts[1])
    documents, recorder = read("text", [tmp_path], tmp_path)
    assert "".join(documents).encode() == texts[1]
    assert all(len(d.encode()) <= 1000 for d in documents)


@pytest.mark.parametrize("data", [b"abc\n\ndef", b"abc\ndef", b"abc def", "日本語".encode() * 4])
def test_cut_point_is_a_place_to_cut(data):
    cut = ranges.cut_point(data, 7)
    assert 0 < cut <= 8
    assert (data[:cut].decode() + data[cut:].decode()).encode() == data


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    texts = [*PAGES, None, "", "é日😀"]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = pa.table({"n": range(len(texts)), "text": pa.array(texts, pa.string()).cast(kind)})
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
        documents, recorder = read("parquet", [tmp_path], tmp_path)
        assert documents == [t for t in texts if t is not None]
        assert recorder.quarantine == [
            {"reason": "missing_text_field", "file": str(tmp_path / "x.parquet"), "offset": 7}
        ]
    with pytest.raises(UsageError, match="no column 'body', only n, text"):
        read("parquet", [tmp_path], tmp_path, text_field="body")
    with pytest.raises(UsageError, match="column 'n' is int64, not text"):
        read("parquet", [tmp_path], tmp_path, text_field="n")
    path = tmp_path / "x.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert read("parquet", [path], tmp_path)[1].counters == {"dropped/damaged_file": 1}


@pytest.mark.filterwarnings("ignore")  # of datasets' own dependencies
def test_huggingface_local(tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "data"
    folder.mkdir()
    for name, pages in (("a", PAGES[:4]), ("b", PAGES[4:])):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": p}) + "\n" for p in pages)
        )
    assert read("hf", [folder], tmp_path)[0] == PAGES
    with pytest.raises(UsageError, match=r"hf dataset .* cannot be opened"):
        read("hf", [folder], tmp_path, hf_split="no-such-split")
    datasets.Dataset.from_dict({"text": PAGES}).save_to_disk(tmp_path / "saved")
    assert read("hf", [tmp_path / "saved"], tmp_path)[0] == PAGES
    with pytest.raises(UsageError, match="no column 'body', only text"):
        read("hf", [tmp_path / "saved"], tmp_path, text_field="body")


def test_treebank(tmp_path):
    trees = (
        "( (S (NP-SBJ (NNP Mr.) (NNP Vinken)) (VP (VBZ is)\n  (NP (-NONE- *T*-1)) "
        "(-LRB- -LRB-) (NN chairman) (-RRB- -RRB-)) (. .)) )\n\n(S (NP (PRP He)) (VP (VBZ runs)))\n"
        "(X (Y a b))\n(S (A Go) (. !))"
    )
    (tmp_path / "wsj_0001.mrg").write_text(trees)
    documents, recorder = read("treebank", [tmp_path], tmp_path)
    assert documents == ["Mr. Vinken is ( chairman ) .", "He runs", "Go !"]
    assert recorder.counters == {"dropped/bad_tree": 1}
    (tmp_path / "wsj_0001.mrg").write_text("(S (A a)) ) (S (B b)) (S (C c)")
    documents, recorder = read("treebank", [tmp_path], tmp_path)
    assert documents == ["a", "b"]
    assert recorder.counters == {"dropped/bad_tree": 2}


def test_treebank_builds_a_sentence_a_tree(tmp_path, bpe_path):
    from data_prep.build import build
    from data_prep.inspect import document_texts
    from data_prep.job import BuildArguments

    (tmp_path / "x.mrg").write_text("(S (A Dr.) (B It) (C is) (. .) (D The) (E end))\n(S (A One))")
    arguments = BuildArguments(source="treebank", validation_fraction=0.0)
    dataset = build([str(tmp_path / "x.mrg")], bpe_path, tmp_path / "out", arguments)
    assert list(document_texts(dataset)) == [["Dr. It is . The end"], ["One"]]
    assert dataset.manifest.segmenter["name"] == "none"


@pytest.mark.parametrize("name", NAMES)
def test_empty_and_strange_files(name, tmp_path):
    """No source stops at, or is silent about, a file that is not what it should be."""
    if name == "hf":
        pytest.skip("datasets does the reading")
    suffix = get_source(name).suffixes[0]
    for content in (b"", b"\0" * 3000, b"\xff\xfe\x00", b"(((", b"PAR1PAR1"):
        (tmp_path / f"good{suffix}").write_bytes(b"x")  # so that the input is not all empty
        (tmp_path / f"odd{suffix}").write_bytes(content)
        documents, recorder = read(name, [tmp_path], tmp_path)
        assert documents or recorder.quarantine


def test_units_group_parts():
    from data_prep.sources.base import Part

    parts = [Part(str(n), weight) for n, weight in enumerate([5, 5, 20, 1, 1, 8, 3])]
    units = group_into_units(parts, 10)
    assert [[p.path for p in u.parts] for u in units] == [["0", "1"], ["2"], ["3", "4", "5"], ["6"]]
    assert [u.index for u in units] == [0, 1, 2, 3]
    assert group_into_units(parts, 10) == group_into_units([replace(p) for p in parts], 10)
