"""A line that is too long to be read whole is one record, with a reason of its own."""

from __future__ import annotations

import gzip
import json

import pytest
from decoded import document_texts

from data_prep.build.build import build
from data_prep.build.job import BuildArguments
from data_prep.sources import ranges

TEXTS = ["one", "x" * 5000, "two", "y" * 3000, "three"]
LINES = [json.dumps({"text": text}).encode() + b"\n" for text in TEXTS]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """What is large here is small."""
    for name, size in {"CHUNK": 100, "BATCH_BYTES": 200, "MAX_LINE_BYTES": 1000}.items():
        monkeypatch.setattr(ranges, name, size)
    monkeypatch.setattr(ranges, "PIECE_BYTES", 200)


def expected_faults(path):
    places = (len(LINES[0]), len(b"".join(LINES[:3])))
    return [("line_too_long", str(path), place) for place in places]


@pytest.mark.parametrize("end", [len(LINES[4]), 0, -1, -1500])
@pytest.mark.parametrize("size", [64, 700, 1 << 20])
def test_a_line_that_is_too_long(tmp_path, size, end, monkeypatch, read):
    """In any range, and also where the file ends in it."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", size)
    data = b"".join(LINES)
    (tmp_path / "x.jsonl").write_bytes(data[: len(data) - len(LINES[4]) + end])
    documents, recorder = read("jsonl", [tmp_path])
    assert documents == ["one", "two", "three"][: 3 if end > 0 else 2]
    faults = [(e["reason"], e["file"], e["offset"]) for e in recorder.quarantine]
    assert faults[:2] == expected_faults(tmp_path / "x.jsonl")[: len(faults)]
    assert recorder.counters == {"dropped/line_too_long": len(faults)}


@pytest.mark.parametrize("whole", [True, False])
def test_in_a_stream(tmp_path, whole, bpe_path, monkeypatch):
    monkeypatch.setattr(ranges, "STREAM_BYTES", 10)
    path = tmp_path / "x.jsonl.gz"
    packed = gzip.compress(b"".join(LINES))
    path.write_bytes(packed if whole else packed[:-4])
    arguments = BuildArguments("jsonl", validation_fraction=0.0)
    dataset = build([str(path)], bpe_path, tmp_path / "out", arguments)
    assert ["".join(d) for d in document_texts(dataset)] == ["one", "two", "three"]
    entries = [json.loads(x) for x in (tmp_path / "out/quarantine.jsonl").read_text().splitlines()]
    faults = [(e["reason"], e["file"], e["offset"]) for e in entries]
    assert faults[:2] == expected_faults(path)
    assert [e["reason"] for e in entries[2:]] == ["truncated_archive"] * (not whole)
