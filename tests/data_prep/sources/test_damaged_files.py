"""Damaged archives and streams: what is whole comes out, the rest is counted and named."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma

import pytest
import zstandard
from tars import tar_of

from data_prep.sources import openwebtext, streams
from data_prep.sources.archive import read_members
from data_prep.sources.streams import BrokenStreamError

LINES = [json.dumps({"text": f"Line {n}."}).encode() + b"\n" for n in range(8)]
TEXTS = [f"Line {n}." for n in range(8)]
FIRST, SECOND = (lzma.compress(b"".join(half)) for half in (LINES[:4], LINES[4:]))


REST = {
    "first byte changed": b"\xff" + SECOND[1:],
    "first byte zero": b"\0" + SECOND[1:],
    "garbage": b"garbage",
    "start of a header": SECOND[:3],
    "end missing": SECOND[:-1],
    "two zeros": b"\0\0",
    "five zeros": b"\0" * 5 + SECOND,
}


@pytest.mark.parametrize("rest", list(REST))
def test_what_follows_an_xz_stream_is_not_passed_over(tmp_path, rest, read):
    path = tmp_path / "x.jsonl.xz"
    path.write_bytes(FIRST + REST[rest])
    documents, recorder = read("jsonl", [path])
    assert documents[:4] == TEXTS[:4]
    assert sum(recorder.counters.values()) == 1
    (entry,) = recorder.quarantine
    assert entry["reason"] in ("damaged_archive", "truncated_archive")
    assert (entry["file"], entry["offset"]) == (str(path), len(b"".join(LINES[: len(documents)])))


@pytest.mark.parametrize("zeros", [0, 4, 8, 1 << 18])
def test_zeros_between_and_after_xz_streams_are_padding(tmp_path, zeros, read, monkeypatch):
    monkeypatch.setattr(streams, "STEP", 7)
    (tmp_path / "x.jsonl.xz").write_bytes(FIRST + b"\0" * zeros + SECOND + b"\0" * zeros)
    documents, recorder = read("jsonl", [tmp_path])
    assert documents == TEXTS
    assert not recorder.counters


def test_what_follows_the_xz_of_an_archive(tmp_path, read):
    pages = [lzma.compress(tar_of([(f"{n}.txt", b"Page %d." % n)])) for n in range(2)]
    path = tmp_path / "urlsf_data.xz"
    path.write_bytes(pages[0] + b"\0" + pages[1][1:])
    documents, recorder = read("openwebtext", [path])
    assert documents == ["Page 0."]
    assert recorder.counters == {"dropped/damaged_archive": 1}
    assert recorder.quarantine[0]["file"] == str(path)


INNER = [lzma.compress(tar_of([(f"{n}.txt", f"Page {n}.".encode())])) for n in range(4)]
OUTER = tar_of([(f"openwebtext/urlsf_{n}_data.xz", data) for n, data in enumerate(INNER)])


def third_member():
    """Where the data of the third archive begins in OUTER."""
    return [m.offset for m in read_members(io.BytesIO(OUTER), 1 << 20)][2]


def outer_damaged(kind):
    at = third_member()
    if kind == "damaged_archive":  # its header
        return OUTER[: at - 512] + b"\xff" * 100 + OUTER[at - 412 :]
    return OUTER[: at + 20]


@pytest.mark.parametrize("kind", ["truncated_archive", "damaged_archive"])
def test_a_damaged_plain_outer_archive(tmp_path, kind, bpe_path, run):
    """The archives before the damage and those of other files come out; the damage is named."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "openwebtext.tar").write_bytes(outer_damaged(kind))
    (folder / "other.xz").write_bytes(INNER[3])
    common = ("--source", "openwebtext", "--input", folder)
    building = ("build", *common, "--tokenizer", bpe_path, "--output", out)
    code, said, error = run(*building, "--dry-run")
    assert code == 0, error
    assert f"dropped/{kind} in the sample: 1" in said
    code, said, error = run(*building, "--validation-fraction", "0")
    assert code == 0, error
    assert "train: 3 documents" in said
    entry = json.loads((out / "quarantine.jsonl").read_text())
    assert (entry["reason"], entry["file"]) == (kind, str(folder / "openwebtext.tar"))
    assert 0 <= third_member() - 512 - entry["offset"] < 512  # the end of the second member
    code, _, error = run("tokenizer", *common, "--output", tmp_path / "t", "--vocab-size", "270")
    assert code == 0, error


def test_an_inner_archive_that_is_too_large(tmp_path, monkeypatch, read):
    monkeypatch.setattr(openwebtext, "LONGEST_INNER", 1000)
    members = [("a_data.xz", INNER[0]), ("b_data.tar", b"x" * 2000), ("c_data.xz", INNER[1])]
    (tmp_path / "openwebtext.tar").write_bytes(tar_of(members))
    documents, recorder = read("openwebtext", [tmp_path])
    assert documents == ["Page 0.", "Page 1."]
    assert recorder.counters == {"dropped/member_too_large": 1}
    assert recorder.quarantine[0]["detail"] == "b_data.tar"


def test_archives_of_no_bytes_are_counted(tmp_path, read):
    """By themselves, inside xz, and inside an outer archive."""
    for name in ("a.xz", "b.tar", "c.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "d.xz").write_bytes(lzma.compress(b""))
    (tmp_path / "e.tar").write_bytes(tar_of([("x_data.xz", b""), ("y_data.xz", INNER[0])]))
    documents, recorder = read("openwebtext", [tmp_path])
    assert documents == ["Page 0."]
    assert recorder.counters == {"dropped/empty_file": 5}
    names = ["a.xz", "b.tar", "c.txt", "d.xz", "e.tar"]
    assert [e["file"] for e in recorder.quarantine] == [str(tmp_path / name) for name in names]


@pytest.mark.parametrize("record", [b"x path=a", b"0 path=a\n", b"999 path=a\n", b"2 path=a\n"])
def test_a_damaged_pax_header(record):
    header = bytearray(tar_of([("pax", record)]))
    header[156:157] = b"x"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 8 * 32)
    with pytest.raises(BrokenStreamError, match="damaged_archive: no pax record"):
        list(read_members(io.BytesIO(header), 1 << 20))


NUMBERED = [
    f"Doc number {n}. " + " ".join(str(n * k % 9973) for k in range(30)) for n in range(9000)
]
PACKED = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


@pytest.mark.parametrize("kind", list(PACKED))
@pytest.mark.parametrize("split", [True, False])
def test_damage_does_not_splice_text(tmp_path, kind, split, read):
    """Of a damaged stream nothing is used that its damage may have made; the one before stays."""
    first = PACKED[kind]("\n\n".join(NUMBERED[:9]).encode() + b"\n\n")
    second = PACKED[kind]("\n\n".join(NUMBERED[9:]).encode())
    for place in range(2000, len(second), len(second) // 6):
        damaged = bytearray(second)
        del damaged[place : place + 7]
        (tmp_path / f"x.txt.{kind}").write_bytes(first + damaged)
        documents, recorder = read("text", [tmp_path], split_blank_lines=split)
        (entry,) = recorder.quarantine
        texts = [d.strip() for d in documents] if split else documents[0].strip().split("\n\n")
        assert texts == NUMBERED[: len(texts)]
        if entry["reason"] == "damaged_archive":
            assert len(texts) == 9


@pytest.mark.parametrize("kind", list(PACKED))
def test_a_long_stream_is_looked_at_before_it_is_used(tmp_path, kind, read, monkeypatch):
    monkeypatch.setattr(streams, "HELD_BACK", 1 << 15)
    first, text = "\n".join(NUMBERED[:9]), "\n".join(NUMBERED)
    sound = PACKED[kind](first.encode() + b"\n"), bytearray(PACKED[kind](text.encode()))
    (tmp_path / f"x.txt.{kind}").write_bytes(b"".join(sound))
    [document], recorder = read("text", [tmp_path])
    assert (document, recorder.quarantine) == (first + "\n" + text, [])
    sound[1][len(sound[1]) // 2] ^= 255
    (tmp_path / f"x.txt.{kind}").write_bytes(b"".join(sound))
    [document], recorder = read("text", [tmp_path])
    assert document.rstrip() == first
    [entry] = recorder.quarantine
    assert entry["reason"] == "damaged_archive"
    assert f"{kind}, the stream from byte {len(sound[0])}: " in entry["detail"]
    assert entry["detail"].endswith("nothing of it is used")


def test_of_a_file_that_cannot_go_back_the_text_that_was_used_is_named(monkeypatch):
    monkeypatch.setattr(streams, "HELD_BACK", 1 << 16)

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    text = "\n".join(NUMBERED).encode()
    packed = bytearray(gzip.compress(text))
    packed[-8] ^= 1  # its checksum
    stream, parts = streams.decompressed(Pipe(packed), ".gz"), []
    with pytest.raises(BrokenStreamError, match="incorrect data check") as raised:
        parts += iter(lambda: stream.read(1 << 14), b"")
    found = b"".join(parts)
    detail = raised.value.detail
    assert detail.endswith(f"but its first {len(found)} bytes of text, which may be wrong")
    assert len(found) > 1 << 20
    assert text.startswith(found)


def test_a_frame_to_skip_begins_a_file(tmp_path, read):
    """As pzstd writes."""
    frame = zstandard.ZstdCompressor().compress(b"".join(LINES))
    for number in (0, 15):
        skipped = bytes([0x50 + number]) + b"\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
        (tmp_path / f"{number}.jsonl.zst").write_bytes(skipped + frame)
    assert read("jsonl", [tmp_path])[0] == TEXTS * 2


def test_many_empty_streams(tmp_path, read):
    packed = b"".join(LINES[:4])
    for kind, compress in PACKED.items():
        (tmp_path / f"x.jsonl.{kind}").write_bytes(compress(b"") * 3000 + compress(packed))
    documents, recorder = read("jsonl", [tmp_path])
    assert (documents, recorder.counters) == (TEXTS[:4] * 4, {})


def test_a_file_that_is_cut_short_ends_at_its_last_whole_line(tmp_path, read):
    lines = "".join(f"Line {n} {hash(str(n))}.\n" for n in range(2000))
    for kind in ("gz", "xz"):
        whole = PACKED[kind](lines.encode())
        (tmp_path / f"x.txt.{kind}").write_bytes(whole[: len(whole) // 2])
        (document,), recorder = read("text", [tmp_path / f"x.txt.{kind}"])
        assert len(document) > 1000
        assert lines.startswith(document)
        assert document.endswith("\n")
        assert recorder.counters == {"dropped/truncated_archive": 1}
        assert recorder.quarantine[0]["offset"] == len(document)
