"""Whatever the documents, the source and the units: decoding the shards gives every text back."""

from __future__ import annotations

import io
import json
import lzma
import re
import tarfile
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoded import document_texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.build.build import build
from data_prep.build.job import BuildArguments
from data_prep.dataset.verify import verify
from data_prep.text.encodings import detect_encoding

# strings that have broken programs: each kind of the naughty strings, mojibake and UTF-8 edge cases
NAUGHTY = [
    "undefined", "NULL", "0/0", "1e-10", "١٢٣", "½⅓", "Ω≈ç√∫˜µ≤≥÷", "田中さんにあげて下さい",
    "\u202eright to left\u202c", "مُنَاقَشَةُ سُبُلِ اِسْتِخْدَامِ", "בְּרֵאשִׁית",
    "Ṱ̺̺̕o͞ ̷i̲̬͇̪͙n̝̗͕v̟̜̘̦͟o̶̙̰̠kè͚̮̺̪̹̱̤", "👩‍👩‍👧‍👦", "🇺🇸🇷🇺", "👾 🙇 💁 🙅", "0️⃣1️⃣", "\ufeff", "\u200b\u2060\u180e",
    "\u00a0\u2003\u3000", "\x00\x01\x1f\x7f", "\u0085\u2028\u2029", "\x80\x9f", "\ufffd\uffff",
    "\U0010ffff", "<script>alert(1)</script>", "'; DROP TABLE users; --", "%s%n$HOME", "../../etc",
    "<|endoftext|>", "[CLS] [SEP]", "The quick brown ﬁox", "â€œquotedâ€\x9d", "schÃ¶n", "\\u0041\\",
    "?!?!?!", ". . .", "Mr. A. B. said: “No.”", "x" * 700, "\r\n", "\n\n", "\n", "\t", " ",
]  # fmt: skip
DOCUMENTS = st.lists(
    st.lists(st.one_of(st.sampled_from(NAUGHTY), st.text(max_size=8)), max_size=8).map("".join),
    min_size=1, max_size=6,
)  # fmt: skip


def cleaned(text: str) -> str:
    """What docs/shard_format.md says of the cleaning."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    text = re.sub("[\r\x0b\x0c\x85\u2028\u2029]", "\n", text)
    return re.sub("[\x00-\x08\x0e-\x1f\x7f-\x9f]", "", text).strip(" \n\t")


def _files(folder: Path, texts: list[str]) -> None:
    for number, text in enumerate(texts):
        (folder / f"{number:03d}.txt").write_bytes(text.encode())


def _lines(folder: Path, texts: list[str]) -> None:
    lines = [json.dumps({"text": t}, ensure_ascii=n % 2 == 0) for n, t in enumerate(texts)]
    (folder / "x.jsonl").write_text("\n".join(lines), encoding="utf-8")


def _parquet(folder: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"text": texts}), folder / "x.parquet", row_group_size=2)


def _release(folder: Path, texts: list[str]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number, text in enumerate(texts):
            info = tarfile.TarInfo(f"{number:07d}.txt")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    (folder / "urlsf_subset00-0_data.xz").write_bytes(lzma.compress(buffer.getvalue(), preset=0))


WRITE = {"text": _files, "jsonl": _lines, "parquet": _parquet, "openwebtext": _release}


@pytest.mark.parametrize("source", list(WRITE))
@settings(
    deadline=None,
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(texts=DOCUMENTS, unit=st.sampled_from([1, 300, 1 << 20]), limit=st.sampled_from([8, 256]))
def test_every_text_comes_back(source, texts, unit, limit, bpe_path):
    """Once, whole, in order; what holds nothing is counted."""
    if source in ("text", "openwebtext"):  # a file of control characters is no text
        texts = [text for text in texts if detect_encoding(text.encode()).encoding == "utf-8"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "in")
        folder.mkdir()
        WRITE[source](folder, [*texts, "The last one."])
        dataset = build(
            [str(folder)], bpe_path, Path(name, "out"),
            BuildArguments(
                source, validation_fraction=0.0, unit_bytes=unit, max_sentence_tokens=limit
            ),
        )  # fmt: skip
        expected = [cleaned(text) for text in [*texts, "The last one."]]
        assert ["".join(s) for s in document_texts(dataset)] == [t for t in expected if t]
        counters = dataset.manifest.counters
        empty = sum(counters.get(f"dropped/{r}", 0) for r in ("empty_document", "empty_file"))
        assert empty == expected.count("")
        assert verify(dataset.path) == []
