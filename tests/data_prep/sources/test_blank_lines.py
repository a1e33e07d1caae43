"""Blank lines that separate documents: with spaces or not, the same for any way of cutting."""

from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.sources import blank_lines, ranges
from data_prep.sources.base import InputFile, Part
from data_prep.sources.blank_lines import first_blank_line_end, last_blank_line_end
from data_prep.sources.options import SourceOptions
from data_prep.sources.text import TextSource
from data_prep.text.batch import Recorder

TEXTS = [f" = Títle {n} = \nLine é {'ü' * (n % 50)}.\nMore." for n in range(80)]
SEPARATORS = ["\n\n", "\n \n", "\n\t \n \n", "\n\r\n", "\n \r\n\n"]


def slow_ends(data):
    """After each blank line, by the definition."""
    lines, ends, at = data.split(b"\n"), [], len(data.split(b"\n")[0]) + 1
    for line in lines[1:-1]:
        at += len(line) + 1
        if not line.strip(b" \t\r"):
            ends.append(at)
    return ends


@settings(deadline=None, max_examples=150)
@given(st.text("\n\n\n \t\rab", max_size=40), st.integers(1, 9), st.integers(1, 9))
def test_ends_are_those_of_the_definition(text, chunk, window):
    data = text.encode()
    ends = slow_ends(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blank_lines, "CHUNK", chunk)
        patch.setattr(blank_lines, "WINDOW", window)
        assert last_blank_line_end(data) == max(ends, default=0)
        for at in range(1, len(data) + 1):
            expected = min((end for end in ends if end >= at), default=None)
            assert first_blank_line_end(io.BytesIO(data), at) == expected


def test_a_very_long_blank_line_keeps_ranges_in_order(monkeypatch):
    monkeypatch.setattr(blank_lines, "LOOK_BACK", 5)
    monkeypatch.setattr(blank_lines, "CHUNK", 4)
    data = b"a\n" + b" " * 30 + b"\nb\n\nc"
    found = [first_blank_line_end(io.BytesIO(data), at) for at in range(1, 36)]
    assert found == sorted(found)
    assert set(found) == {33, 36}


@pytest.mark.parametrize("size", [1, 7, 50, 300, 1000, 100_000])
def test_documents_are_the_same_for_any_range_size(tmp_path, size, monkeypatch, read):
    """None is cut, and none but the first range reads where the first one begins."""
    joined = "".join(t + SEPARATORS[n % len(SEPARATORS)] for n, t in enumerate(TEXTS))
    (tmp_path / "x.txt").write_bytes(joined.encode())
    monkeypatch.setattr(ranges, "RANGE_BYTES", size)
    monkeypatch.setattr(ranges, "BATCH_BYTES", size)
    monkeypatch.setattr(ranges, "CHUNK", 64)
    monkeypatch.setattr(ranges, "MAX_LINE_BYTES", 400)
    documents, recorder = read("text", [tmp_path / "x.txt"], split_blank_lines=True)
    assert [d.strip() for d in documents] == [t.strip() for t in TEXTS]
    assert not recorder.counters


def test_each_range_reads_its_own(tmp_path, monkeypatch):
    """Also where all blank lines hold a space."""
    path = tmp_path / "x.txt"
    path.write_bytes("\n \n".join(TEXTS).encode())
    monkeypatch.setattr(ranges, "RANGE_BYTES", 500)
    source, options = TextSource(), SourceOptions(split_blank_lines=True)
    counts = []
    for part in source.parts([InputFile(str(path), path.stat().st_size)], options):
        batches = source.read(part, options, Recorder())
        counts.append(sum(len(batch.starts) for batch in batches))
    assert sum(counts) == len(TEXTS)
    assert min(counts[:-1]) > 0
    assert max(counts) < 30


def test_pieces_of_a_stream_end_at_such_blank_lines(tmp_path, monkeypatch):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress("\n \n".join(TEXTS).encode()))
    monkeypatch.setattr(ranges, "PIECE_BYTES", 500)
    monkeypatch.setattr(ranges, "CHUNK", 100)
    options = SourceOptions(split_blank_lines=True)
    part = Part(str(path), 0)
    pieces = [piece.files[0].data for piece in TextSource().pieces(part, options)]
    assert len(pieces) > 5
    assert all(piece.endswith(b"\n \n") for piece in pieces[:-1])


def test_what_has_no_blank_line_is_cut_between_characters(tmp_path, monkeypatch, read):
    (tmp_path / "x.txt").write_bytes("漢".encode() * 3000)
    monkeypatch.setattr(ranges, "BATCH_BYTES", 100)
    monkeypatch.setattr(ranges, "CHUNK", 100)
    monkeypatch.setattr(ranges, "MAX_LINE_BYTES", 400)
    documents, _ = read("text", [tmp_path / "x.txt"], split_blank_lines=True)
    assert len(documents) > 5
    assert "".join(documents) == "漢" * 3000
