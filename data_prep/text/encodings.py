"""Whether bytes are text, and in which encoding.

UTF-8 is used as it is. Others are recognised by a byte order mark, by their zeros (UTF-16 and
UTF-32), or by the package charset-normalizer; ``--encoding`` declares one.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from dataclasses import dataclass
from itertools import islice

from data_prep.text.alphabets import LATIN_LETTERS, is_hebrew, latin_encoding, most_fitting

UTF8, AUTO = "utf-8", "auto"
SAMPLE_BYTES = 1 << 20  # read from a file to detect its encoding
ASCII_BYTES = 16 << 20  # read on while there is nothing but ASCII
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")
_ASCII_BEFORE = 1 << 10  # of what is looked at before the first byte beyond ASCII
_DETECTOR_BYTES = 1 << 16  # of lines that are not ASCII, passed to the detector
_MARKS = (  # UTF-32 first: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, UTF8),
)
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
# Without compressed formats that are opened, and without bytes that text may begin with.
_MAGIC = {
    b"%PDF-": "a PDF",
    b"\x89PNG": "a PNG",
    b"\xff\xd8\xff": "a JPEG",
    b"GIF87a": "a GIF",
    b"GIF89a": "a GIF",
    b"PK\x03\x04": "a zip file",
    b"PAR1": "a parquet file; use --source parquet",
    b"\x7fELF": "a program",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it",
    b"Rar!\x1a\x07": "a rar archive; unpack it",
    b"\x04\x22\x4d\x18": "compressed by lz4; unpack it",
    b"\x1f\x9d": "compressed by compress; unpack it",
    b"\xd0\xcf\x11\xe0": "an office document",
    b"SQLite format 3\0": "a database",
}
BINARY_HEADS = tuple(_MAGIC)
_LIKE_WORDS = ("a GIF", "a parquet file; use --source parquet")  # their heads may begin a text
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b") | {127})
LIKELY = 0.1
"""An encoding is likely up to so much more disorder than the detector finds in the best one."""
LEAST_VALID = 15
"""Valid characters beyond ASCII, of which fewer in another encoding are half by chance."""
MOST_CONTROLS = 0.02
"""The largest fraction of control characters in text with more than a few of them."""
MOST_BAD = 0.01
"""The largest fraction of a document's bytes that begin an invalid sequence, when there are more
than FEW_BAD of these. Beyond it the document is dropped; below, they become U+FFFD."""
FEW_BAD = 2
_CANDIDATES = (  # of the detector
    *(f"cp125{n}" for n in range(9)), "cp437", "cp850", "cp852", "cp866", "cp874", "koi8_r",
    "koi8_u", *(f"iso8859_{n}" for n in (1, 2, 5, 6, 7, 8, 9, 15)), "mac_roman", "mac_cyrillic",
    "cp932", "euc_jp", "iso2022_jp", "iso2022_kr", "hz", "gb18030", "big5", "cp949", "johab",
)  # fmt: skip
# a space, line ends, and the full stops and commas of CJK: other bytes do not decode to them
_WIDE_SIGNS = frozenset(" \n\u3000\u3001\u3002\uff0c")


@dataclass(frozen=True)
class Detected:
    """The ``encoding`` of text; or the ``reason`` why bytes are not readable text, and a detail."""

    encoding: str = ""
    reason: str = ""
    detail: str = ""


_NOT_OF_FILES = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")
"""Codecs of Python for names of hosts and for source code."""


def known_encoding(name: str) -> str | None:
    """Python's name of a text encoding, ``auto`` itself, or None."""
    if name == AUTO:
        return name
    try:
        codec = codecs.lookup(name).name
        if codec in _NOT_OF_FILES:
            return None
        "".encode(codec)
    except LookupError:  # unknown, or not of text
        return None
    return UTF8 if codec == "utf-8-sig" else codec


def telling_part(data: bytes) -> tuple[bytes, bool]:
    """What ``detect_encoding`` looks at: the start of a text, or a part from where its ASCII ends.

    Returns SAMPLE_BYTES at most, and whether they reach the end of the text.
    """
    start = 0
    if data[:SAMPLE_BYTES].isascii() and b"\0" not in data[:1024]:
        beyond = _BEYOND_ASCII.search(data, SAMPLE_BYTES)
        start = beyond.start() - _ASCII_BEFORE if beyond else 0
    sample = data[start : start + SAMPLE_BYTES]
    return sample, start + len(sample) == len(data)


def detect_encoding(sample: bytes, declared: str = AUTO, whole: bool = True) -> Detected:
    """Detect what bytes are. sample: a file's start; whole: it is the whole file.

    declared: the encoding of what is not UTF-8 and does not show by a mark or zeros what it is.
    """
    kind = next((kind for magic, kind in _MAGIC.items() if sample.startswith(magic)), None)
    if sample[257:262] == b"ustar":
        kind = "a tar archive; unpack it"
    if kind and (kind not in _LIKE_WORDS or b"\0" in sample[:1024]):
        return Detected(reason="binary_file", detail=kind)
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return Detected(encoding)
    is_utf8 = _fits(sample, UTF8, whole)
    if not is_utf8 or b"\0" in sample:
        for encoding in _WIDE:
            if _is_wide_text(sample, encoding):
                return Detected(encoding)
    if declared == AUTO:
        return _detect_narrow(sample, is_utf8)
    # All of ASCII may be text of an encoding that escapes other characters.
    if not sample.isascii() and (is_utf8 or _is_mostly_utf8(sample)):
        return Detected(UTF8)
    return Detected(f"{declared}-le" if declared in ("utf-16", "utf-32") else declared)


def _detect_narrow(sample: bytes, is_utf8: bool) -> Detected:
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if controls > max(4, MOST_CONTROLS * len(sample)):
        detail = f"{controls} control characters in the first {len(sample)} bytes"
        return Detected(reason="binary_file", detail=detail)
    escaped = b"\x1b$" in sample and sample.isascii()  # ISO 2022: all in ASCII
    if is_utf8 and not escaped:
        return Detected(UTF8)
    if not escaped and _is_mostly_utf8(sample):
        return Detected(UTF8)
    return _detect(sample)


def _is_mostly_utf8(sample: bytes) -> bool:
    """Whether it is UTF-8 with damaged places, or with some lines of another encoding.

    Of text in another encoding up to four tenths of the characters beyond ASCII happen to be valid,
    in a short one more.
    """
    text = sample.decode(errors="replace")
    bad = text.count("\ufffd")
    good = sum(character >= "\x80" for character in text) - bad
    if good < LEAST_VALID:
        return good >= 9 * bad
    lines = [line for line in text.splitlines() if not line.isascii()]
    return good >= bad or 2 * sum("\ufffd" in line for line in lines) <= len(lines)


def _fits(sample: bytes, encoding: str, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(sample, final=whole)
    except UnicodeDecodeError:
        return False
    return True


def _is_wide_text(sample: bytes, encoding: str) -> bool:
    """Whether bytes are UTF-16 or UTF-32 without a mark: characters that are, among them spaces."""
    width = 4 if "32" in encoding else 2
    sample = sample[: min(len(sample), _DETECTOR_BYTES)]
    if len(sample) < 4 * width:
        return False
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return False
    signs = sum(character in _WIDE_SIGNS for character in text)
    odd = sum(unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs") for character in text)
    odd -= sum(map(text.count, "\t\n\r\f"))
    return 100 * signs >= len(text) and 100 * odd <= len(text)


def _detect(sample: bytes) -> Detected:
    """An older encoding, by the lines that are not ASCII."""
    lines = (_from_beyond_ascii(line) for line in sample.splitlines(keepends=True))
    sampled = (
        b"".join(islice(filter(None, lines), 2000))[:_DETECTOR_BYTES] or sample[:_DETECTOR_BYTES]
    )
    encoding = latin_encoding(sampled) or _of_detector(sampled)
    detail = "neither UTF-8 nor another encoding that is recognised; name it: --encoding NAME"
    if not encoding:
        return Detected(reason="unknown_encoding", detail=detail)
    bad = decoded(sample, encoding).count(BAD_BYTE)
    if bad > max(FEW_BAD, MOST_BAD * len(sample)):
        return Detected(reason="unknown_encoding", detail=f"{detail} (not {encoding})")
    return Detected(encoding)


def _from_beyond_ascii(line: bytes) -> bytes:
    """A line from a little before its first byte beyond ASCII; nothing where it has none."""
    beyond = _BEYOND_ASCII.search(line)
    return line[max(beyond.start() - _ASCII_BEFORE, 0) :] if beyond else b""


def _of_detector(sampled: bytes) -> str:
    """The encoding that disorders a text least; empty where none fits."""
    import charset_normalizer

    matches = charset_normalizer.from_bytes(sampled, cp_isolation=list(_CANDIDATES))
    best = next((match for match in matches if not _is_narrow_kana(sampled, match.encoding)), None)
    if best is None:
        return ""
    if best.encoding in LATIN_LETTERS:
        as_likely = [match for match in matches if match.chaos <= best.chaos + LIKELY]
        names = {name for m in as_likely for name in (m.encoding, *m.could_be_from_charset)}
        return most_fitting(sampled, sorted(names)) or best.encoding
    return "cp1255" if best.encoding == "cp1251" and is_hebrew(sampled) else best.encoding


def _is_narrow_kana(data: bytes, encoding: str) -> bool:
    """Whether it would be Japanese in narrow katakana, which nobody writes texts in."""
    if encoding != "cp932":
        return False
    beyond = [character for character in data.decode(encoding, "replace") if character >= "\x80"]
    return 2 * sum("\uff61" <= character <= "\uff9f" for character in beyond) > len(beyond)


BAD_BYTE = b"\xff"  # never in UTF-8: stands for bytes that are invalid in their encoding


def _mark_bad(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


def _mark_surrogate(error: UnicodeError) -> tuple[bytes, int]:
    """One that ``_mark_bad`` gave, or that UTF-7 can hold."""
    assert isinstance(error, UnicodeEncodeError)
    return BAD_BYTE * (error.end - error.start), error.end


codecs.register_error("data_prep.bad_byte", _mark_bad)
codecs.register_error("data_prep.lone_surrogate", _mark_surrogate)


def decoder(encoding: str) -> codecs.IncrementalDecoder:
    """A decoder that turns invalid bytes into a lone surrogate (see ``as_utf8``)."""
    return codecs.getincrementaldecoder(encoding)("data_prep.bad_byte")


def as_utf8(text: str) -> bytes:
    """Decoded text as UTF-8, with BAD_BYTE for invalid bytes."""
    return text.encode("utf-8", "data_prep.lone_surrogate")


def decoded(data: bytes, encoding: str) -> bytes:
    """Bytes in some encoding converted to UTF-8."""
    return as_utf8(decoder(encoding).decode(data, final=True))
