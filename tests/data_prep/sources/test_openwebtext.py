"""Source openwebtext, in every state of unpacking; damage is counted and named."""

from __future__ import annotations

import io
import lzma
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tars import tar_of

from data_prep.sources.archive import read_members
from data_prep.sources.streams import BrokenStreamError

PAGES = [f"Page {n}.\n\nA paragraph of page {n}.\n\nAnother one." for n in range(7)]


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


def test_openwebtext_as_released(tmp_path, release, read):
    documents, recorder = read("openwebtext", [release])
    assert documents == PAGES
    assert not recorder.quarantine


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_openwebtext_plain_tar(tmp_path, kind, read):
    (tmp_path / "pages.tar").write_bytes(pages_tar(0, 7, kind))
    assert read("openwebtext", [tmp_path / "pages.tar"])[0] == PAGES


def test_openwebtext_unpacked(tmp_path, read):
    folder = tmp_path / "openwebtext" / "urlsf_subset00-1_data"
    folder.mkdir(parents=True)
    for number, page in enumerate(PAGES):
        (folder / f"{number:07d}-ab.txt").write_text(page)
    assert read("openwebtext", [folder.parent])[0] == PAGES


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_openwebtext_outer(tmp_path, release, suffix, read):
    path = tmp_path / f"openwebtext.tar{suffix}"
    path.write_bytes((lzma.compress if suffix else bytes)(outer_tar(release)))
    documents, recorder = read("openwebtext", [path])
    assert documents == PAGES
    assert not recorder.quarantine


def test_openwebtext_truncated(tmp_path, release, read):
    """The whole pages before the damage come out; the rest is named."""
    path = release / "urlsf_subset00-0_data.xz"
    data = b"".join(f"{n:06d}".encode() * 100 for n in range(3000))
    whole = lzma.compress(tar_of([("a.txt", b"first page"), ("b.txt", data)]))
    path.write_bytes(whole[: len(whole) // 2])
    documents, recorder = read("openwebtext", [path])
    assert documents == ["first page"]
    assert recorder.counters["dropped/truncated_archive"] == 1
    assert recorder.quarantine[0]["file"] == str(path)


def test_openwebtext_pages_that_are_not_utf8(tmp_path, read):
    latin = "Un été très agréable, où l'on dort à midi.".encode("latin-1")
    members = [("a.txt", b"a"), ("wide.txt", "Wide.".encode("utf-16")), ("c.txt", b"c"),
               ("old.txt", latin), ("image.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")]  # fmt: skip
    (tmp_path / "x.tar").write_bytes(tar_of(members))
    documents, recorder = read("openwebtext", [tmp_path / "x.tar"])
    assert [d.lstrip("\ufeff") for d in documents] == ["a", "Wide.", "c", latin.decode("latin-1")]
    assert sorted(recorder.counters) == [
        "dropped/binary_file", "files_decoded/cp1252", "files_decoded/utf-16",
    ]  # fmt: skip
    assert recorder.quarantine[0]["detail"] == "a PNG"
    archive = str(tmp_path / "x.tar")  # of blocks of 512 bytes, two a member
    assert recorder.decoded == [
        {"file": archive, "offset": 1536, "encoding": "utf-16"},
        {"file": archive, "offset": 3584, "encoding": "cp1252"},
    ]


def test_openwebtext_not_an_archive(tmp_path, read):
    (tmp_path / "x.xz").write_bytes(lzma.compress(b"no archive " * 100))
    documents, recorder = read("openwebtext", [tmp_path / "x.xz"])
    assert documents == []
    assert recorder.counters == {"dropped/damaged_archive": 1}


def test_openwebtext_member_too_large(tmp_path, monkeypatch, read):
    from data_prep.sources import openwebtext

    monkeypatch.setattr(openwebtext, "MAX_DOCUMENT_BYTES", 1000)
    data = tar_of([("a.txt", b"a"), ("big.txt", b"x" * 3_000_000), ("c.txt", b"c")])
    (tmp_path / "x.tar").write_bytes(data)
    documents, recorder = read("openwebtext", [tmp_path / "x.tar"])
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


def test_a_member_as_long_as_allowed_and_a_header_whose_sum_is_wrong():
    archive = tar_of([("a.txt", b"x" * 600)])
    (member,) = read_members(io.BytesIO(archive), 600)
    assert member.stop - member.start == 600
    (member,) = read_members(io.BytesIO(archive), 599)
    assert member.stop == -1
    with pytest.raises(BrokenStreamError, match="no tar header at 0"):
        list(read_members(io.BytesIO(b"b" + archive[1:]), 600))
