"""Cleaning of raw bytes, against a slow reference in plain Python."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.text.batch import RawBatch
from data_prep.text.normalise import normalise

PIECES = [
    b"a", b"Zz", b" ", b"\n", b"\r\n", b"\r", b"\t", b"\0", b"\x0b", b"\x0c", b"\x7f", b"\x1b",
    "é".encode(), "\u0085".encode(), "\u0090".encode(), "\u2028".encode(), "\u2029".encode(),
    "\u2027".encode(), "日".encode(), "😀".encode(), b"\xef\xbb\xbf", b"\xff", b"\xc0\x80",
    b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80", b"\xf0\x9f\x98", b"\x80",
]  # fmt: skip


def reference(raw: bytes) -> bytes:
    """What the module says it does, one step at a time."""
    text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").replace("\r\n", "\n")
    for line_end in "\r\v\f\u0085\u2028\u2029":
        text = text.replace(line_end, "\n")
    kept = "".join(c for c in text if c in "\n\t" or not (c < " " or "\x7f" <= c < "\xa0"))
    return kept.strip(" \t\n").encode()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), max_size=5))
def test_cleaning_equals_the_reference(documents):
    clean = normalise(RawBatch.join(documents, "file", range(len(documents))))
    raw, start = clean.data.tobytes(), 0
    for document, end in zip(documents, clean.ends.tolist(), strict=True):
        assert raw[start:end] == reference(document)
        start = end


def test_all_pairs_of_first_bytes_are_decoded_as_python_does():
    """And the bad sequences among them are counted."""
    firsts = [bytes([one, two]) for one in range(0x80, 256) for two in range(256)]
    documents = [first + rest for first in firsts for rest in (b"\x80\xbf", b"a")]
    clean = normalise(RawBatch.join(documents, "file", range(len(documents))))
    raw, start = clean.data.tobytes(), 0
    for document, end, bad in zip(
        documents, clean.ends.tolist(), clean.num_bad.tolist(), strict=True
    ):
        assert raw[start:end] == reference(document)
        assert bad == document.decode("utf-8", "replace").count("\ufffd")
        start = end


def test_control_characters_are_counted():
    assert normalise(RawBatch.join([b"a\0b\x01c\x7f", b"\xc2\x80"], "f", [0, 1])).num_controls == 4
