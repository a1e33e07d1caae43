"""The choice among similar encodings, where small things decide."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from data_prep.text.alphabets import is_hebrew, latin_encoding
from data_prep.text.encodings import detect_encoding, telling_part


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("un café, un bébé en été " * 40, "cp1252"),  # of the Mac: capitals inside of words
        ("käsi on", "cp850"),  # of Windows: quotes inside of words
        ("käsi on", "cp1252"),
        ("„Ja“, sagte er – und ging.", "cp1252"),
        ("plain words, and two more: 天气", "gbk"),
        ("Только по-русски", "cp1251"),
        ("all of it ASCII", "ascii"),
    ],
)
def test_letters_and_signs_of_one_language(text, encoding):
    """None where the rest is no language of the Latin script, or most of the text."""
    expected = encoding if encoding in ("cp1252", "cp850") else None
    assert latin_encoding(text.encode(encoding)) == expected


@pytest.mark.parametrize("end", ["\n", "\r", " "])
@pytest.mark.parametrize("size", [100, 200_000, 2_000_000])
@pytest.mark.parametrize("encoding", ["cp1252", "gb18030"])
def test_ascii_before_the_first_other_letter_does_not_matter(end, size, encoding):
    """Whatever the length of lines; the offset of what is read of it is no letter's middle."""
    text = {
        "cp1252": "Größe und Äpfel, schön.",
        "gb18030": "这是一个关于天气的简单中文文本。明天会下雨。",
    }
    data = (("Plain words." + end) * (size // 13) + (text[encoding] + end) * 30).encode(encoding)
    assert detect_encoding(*telling_part_of(data)).encoding == encoding


def telling_part_of(data):
    sample, whole = telling_part(data)
    return sample, "auto", whole


def test_hebrew_is_not_any_text_without_capitals():
    assert is_hebrew("שלום לכולם, זהו טקסט פשוט על מזג האוויר היום".encode("cp1255"))
    assert not is_hebrew("вчера валя дъжд затова останахме вкъщи".encode("cp1251"))
    assert not is_hebrew("обычный русский текст о погоде и о дожде".encode("cp1251"))


@pytest.mark.parametrize(("num_good", "num_bad", "is_utf8"), [
    (30, 20, True), (20, 30, False), (9, 1, True), (5, 3, False),
])  # fmt: skip
def test_a_line_is_utf8_by_its_characters(num_good, num_bad, is_utf8):
    """By most of them where there are enough, else nine tenths."""
    data = b" ".join(["a\xe9b".encode()] * num_good + [b"a\xe9b"] * num_bad)
    assert (detect_encoding(data).encoding == "utf-8") == is_utf8


def test_text_is_not_narrow_katakana(monkeypatch):
    """As which text in small letters in KOI8 can be read, and sometimes is by the detector."""
    data = ("учора йшов дощ тому ми залишилися вдома " * 20).encode("koi8-u")
    found = [SimpleNamespace(encoding=encoding) for encoding in ("cp932", "koi8_u")]
    monkeypatch.setattr("charset_normalizer.from_bytes", lambda *_, **__: found)
    assert detect_encoding(data).encoding == "koi8_u"
    japanese = "これは日本語の文章です。天気がとても良いので。".encode("cp932")
    assert detect_encoding(japanese).encoding == "cp932"
