"""Long documents and long JSON lines: bounded memory, and nothing of them is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.sources import long_documents, long_lines, text
from data_prep.sources.long_lines import LongLine
from data_prep.text.batch import RawBatch, Recorder


def test_long_documents_are_cut(tmp_path, monkeypatch, read):
    """Their pieces are the whole text, in order; the others are left as they are."""
    monkeypatch.setattr(long_documents, "MAX_DOCUMENT_BYTES", 1000)
    texts = [b"short", "wörd ".encode() * 2000, b"x" * 2500, b"end"]
    batch, recorder = RawBatch.join(texts, "file", [3, 5, 7, 9]), Recorder()
    pieces: dict[int, list[bytes]] = {}
    for piece in long_documents.cut_long_documents(batch, recorder):
        for start, end, place in zip(piece.starts, piece.ends, piece.places, strict=True):
            pieces.setdefault(int(place), []).append(piece.data[start:end].tobytes())
    assert [b"".join(found) for found in pieces.values()] == texts
    assert all(len(p) <= 1000 for found in pieces.values() for p in found)
    assert all(p.endswith(b" ") for p in pieces[5])
    assert recorder.counters == {"documents_cut_too_long": 2}
    # a whole file is cut while it is read
    monkeypatch.setattr(text, "CHUNK", 300)
    monkeypatch.setattr(text, "SMALL_FILE", 100)
    (tmp_path / "x.txt").write_bytes(texts[1])
    documents, recorder = read("text", [tmp_path])
    assert "".join(documents).encode() == texts[1]
    assert all(len(d.encode()) <= 1000 for d in documents)


@pytest.mark.parametrize("data", [b"abc\n\ndef", b"abc\ndef", b"abc def", "日本語".encode() * 4])
def test_cut_point_is_a_place_to_cut(data):
    cut = long_documents.cut_point(data, 7)
    assert 0 < cut <= 8
    assert (data[:cut].decode() + data[cut:].decode()).encode() == data


CHARACTERS = st.sampled_from(
    [*'ab \n\t"\\/', "é", "日", "😀", "\u2028", "\ud83d", "\ude00", "\x7f", "\\u0041", "  "]
)


@settings(deadline=None, max_examples=150)
@given(
    text=st.lists(CHARACTERS, max_size=60).map("".join),
    other=st.lists(CHARACTERS, max_size=30).map("".join),
    ascii_only=st.booleans(),
    piece=st.integers(1, 40),
)
def test_long_lines_are_read_as_json_reads_them(text, other, ascii_only, piece):
    """The same string, whatever the pieces; the values beside it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_lines, "LONG_STRING", 8)
        patch.setattr(long_lines, "PIECE_BYTES", piece)
        record = {"id": 5, "other": [other, {"x": None}], "text": text}
        line = json.dumps(record, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        long = LongLine(b"before" + line + b"after", 6, 6 + len(line))
        parsed = json.loads(str(long.rest, "utf-8", "surrogateescape"))
        assert list(parsed) == list(record)
        pieces = long.pieces(parsed["text"])
        found = parsed["text"] if pieces is None else "".join(pieces)
        raw = line.decode("utf-8", "surrogateescape")
        assert found == json.loads(raw)["text"]


@pytest.fixture
def short_limits(monkeypatch):
    monkeypatch.setattr("data_prep.sources.jsonl.LONG_LINE", 200)
    monkeypatch.setattr(long_lines, "LONG_STRING", 100)
    monkeypatch.setattr(long_lines, "LONGEST_REST", 300)
    monkeypatch.setattr(long_lines, "PIECE_BYTES", 64)
    monkeypatch.setattr(long_documents, "MAX_DOCUMENT_BYTES", 500)


def test_long_lines_of_a_file(tmp_path, read, short_limits):
    """Good and bad ones, among short ones; every bad one is named by its offset."""
    text = 'Wörds of "a" line.\n' * 100
    lines = [
        '{"text": "first"}',
        json.dumps({"n": 1, "text": text, "m": [2]}),
        '{"text": "second"}',
        json.dumps({"text": "x" * 300})[:-1],  # no end
        '{"text": "' + "y" * 150 + "\\x" + "y" * 150 + '"}',  # an escape that does not exist
        json.dumps({"other": "z" * 300}),
        json.dumps({"text": 1, "other": "z" * 300}),
        json.dumps([{"text": "a"}] * 100),
        json.dumps({"text": "short", "other": "z" * 300}),
        '{"text": "never ends' + "z" * 300,
        '{"text": "last"}',
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    documents, recorder = read("jsonl", [tmp_path])
    assert documents[0] == "first"
    assert documents[-3:] == ["second", "short", "last"]
    assert "".join(documents[1:-3]) == text
    assert max(len(d.encode()) for d in documents) <= 500
    offsets = [sum(len(x) + 1 for x in lines[:n]) for n in range(len(lines))]
    assert [(q["reason"], q["offset"]) for q in recorder.quarantine] == [
        ("bad_json", offsets[3]),
        ("bad_json", offsets[4]),
        ("missing_text_field", offsets[5]),
        ("text_field_is_not_a_string", offsets[6]),
        ("record_too_large", offsets[7]),
        ("bad_json", offsets[9]),
    ]
    assert recorder.counters["documents_cut_too_long"] == 1
