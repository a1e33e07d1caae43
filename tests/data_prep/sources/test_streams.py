"""Large compressed files: handed out in pieces while they are read, whatever happens."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import signal
import subprocess
import sys
import time

import pytest
import zstandard
from decoded import document_texts
from tars import tar_of

from data_prep.__main__ import main
from data_prep.build import build as build_module
from data_prep.build.build import BuildOptions, build
from data_prep.build.job import BuildArguments
from data_prep.dataset.verify import verify
from data_prep.errors import DataPrepError, SourceError
from data_prep.sources import openwebtext, ranges

COMPRESS = {".gz": gzip.compress, ".xz": lzma.compress,
            ".zst": zstandard.ZstdCompressor().compress}  # fmt: skip
ARGUMENTS = BuildArguments(source="jsonl", validation_fraction=0.0, unit_bytes=4000)
RNG = random.Random(0)
TEXTS = [
    f"Document {n}. " + " ".join(RNG.choices(["It", "was", "so.", "Dr.", "über"], k=40))
    for n in range(400)
]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """What is large here is small."""
    monkeypatch.setattr(ranges, "STREAM_BYTES", 10_000)
    monkeypatch.setattr(ranges, "PIECE_BYTES", 5000)
    monkeypatch.setattr(ranges, "CHUNK", 700)
    monkeypatch.setattr(openwebtext, "PIECE_BYTES", 5000)


def texts_of(dataset):
    return ["".join(document) for document in document_texts(dataset)]


def pieces_done(output):
    return sorted(p.name for p in (output / ".work" / "units").glob("*-*.done"))


def test_documents_come_once_and_in_order(tmp_path, bpe_path, same_files):
    for name in ("a.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes(LINES[: LINES.index(b"\n") + 1])
    for suffix, compress in COMPRESS.items():
        (tmp_path / f"b.jsonl{suffix}").write_bytes(compress(LINES))
    inputs = [str(tmp_path / "*.jsonl*")]
    one = build(inputs, bpe_path, tmp_path / "one", ARGUMENTS)
    assert texts_of(one) == [TEXTS[0], *TEXTS * len(COMPRESS), TEXTS[0]]
    assert verify(one.path) == []
    build(inputs, bpe_path, tmp_path / "two", ARGUMENTS, BuildOptions(workers=2))
    assert same_files(tmp_path / "one", tmp_path / "two")


def test_plain_and_compressed_give_the_same(tmp_path, bpe_path):
    (tmp_path / "x.jsonl").write_bytes(LINES)
    (tmp_path / "x.jsonl.zst").write_bytes(COMPRESS[".zst"](LINES))
    plain = build([str(tmp_path / "x.jsonl")], bpe_path, tmp_path / "a", ARGUMENTS)
    packed = build([str(tmp_path / "x.jsonl.zst")], bpe_path, tmp_path / "b", ARGUMENTS)
    assert plain.manifest.fingerprint == packed.manifest.fingerprint
    assert plain.manifest.counters == packed.manifest.counters


def test_text_blocks(tmp_path, bpe_path):
    from data_prep.sources.options import SourceOptions

    (tmp_path / "x.txt.xz").write_bytes(lzma.compress("\n\n".join(TEXTS).encode()))
    arguments = BuildArguments(
        "text", SourceOptions(split_blank_lines=True), validation_fraction=0.0
    )
    dataset = build([str(tmp_path / "x.txt.xz")], bpe_path, tmp_path / "out", arguments)
    assert texts_of(dataset) == TEXTS


def test_an_outer_archive(tmp_path, bpe_path):
    inner = [
        lzma.compress(tar_of([(f"{n}.txt", TEXTS[n].encode()) for n in range(first, first + 10)]))
        for first in range(0, 400, 10)
    ]
    inner[3] = inner[3][:-40]
    members = [(f"openwebtext/urlsf_subset00-{n}_data.xz", data) for n, data in enumerate(inner)]
    (tmp_path / "openwebtext.tar.xz").write_bytes(lzma.compress(tar_of(members)))
    arguments = BuildArguments("openwebtext", validation_fraction=0.0)
    dataset = build([str(tmp_path / "openwebtext.tar.xz")], bpe_path, tmp_path / "o", arguments)
    found = texts_of(dataset)
    assert [t for t in found if t not in TEXTS[30:40]] == TEXTS[:30] + TEXTS[40:]
    entry = json.loads((tmp_path / "o" / "quarantine.jsonl").read_text())
    assert entry["reason"] == "truncated_archive"
    name = "openwebtext.tar.xz/openwebtext/urlsf_subset00-3_data.xz"
    assert entry["file"] == str(tmp_path / name)


def test_damage_is_named_in_the_input(tmp_path, bpe_path):
    """A bad line in a later piece, and the end of the stream missing."""
    lines = LINES.splitlines(keepends=True)
    lines[200] = b"{bad}\n"
    path = tmp_path / "x.jsonl.gz"
    whole = gzip.compress(b"".join(lines))
    path.write_bytes(whole[:-30])
    dataset = build([str(path)], bpe_path, tmp_path / "out", ARGUMENTS)
    entries = [json.loads(x) for x in (tmp_path / "out/quarantine.jsonl").read_text().splitlines()]
    assert [e["reason"] for e in entries] == ["bad_json", "truncated_archive"]
    assert all(e["file"] == str(path) for e in entries)
    assert entries[0]["offset"] == len(b"".join(lines[:200]))
    found = texts_of(dataset)
    assert found == (TEXTS[:200] + TEXTS[201:])[: len(found)]
    assert len(found) > 300
    assert entries[1]["offset"] >= len(b"".join(lines[: len(found) - 1]))


def test_a_large_file_in_utf16_is_decoded_while_it_is_read(tmp_path, bpe_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINES.decode().encode("utf-16")))
    wide = LINES.decode().encode("utf-16-le")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b"%PDF-" + LINES))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(wide))
    dataset = build([str(tmp_path)], bpe_path, tmp_path / "out", ARGUMENTS)
    assert texts_of(dataset) == TEXTS * 3
    counters = dataset.manifest.counters
    assert (counters["files_decoded/utf-16"], counters["files_decoded/utf-16-le"]) == (1, 1)
    entry = json.loads((tmp_path / "out" / "quarantine.jsonl").read_text())
    assert (entry["reason"], entry["file"]) == ("binary_file", str(tmp_path / "c.jsonl.gz"))


def test_a_failed_build_does_the_other_pieces_only(tmp_path, bpe_path, monkeypatch, same_files):
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(COMPRESS[".zst"](LINES))
    build([str(path)], bpe_path, tmp_path / "whole", ARGUMENTS)
    run_unit = build_module.run_unit
    written = []

    def failing(job, unit):
        if unit.piece == 5:
            raise DataPrepError("a fault")
        return run_unit(job, unit)

    def counting(job, unit):
        written.append(bool(unit.parts))
        return run_unit(job, unit)

    monkeypatch.setattr(build_module, "run_unit", failing)
    with pytest.raises(DataPrepError, match="a fault"):
        build([str(path)], bpe_path, tmp_path / "out", ARGUMENTS)
    assert len(pieces_done(tmp_path / "out")) == 5
    monkeypatch.setattr(build_module, "run_unit", counting)
    build([str(path)], bpe_path, tmp_path / "out", ARGUMENTS)
    assert written[:6] == [False] * 5 + [True]
    assert all(written[5:])
    assert same_files(tmp_path / "out", tmp_path / "whole")


def test_errors_of_the_reader_end_the_build(tmp_path, bpe_path, monkeypatch):
    """An error in its thread is the build's; nothing hangs."""
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(COMPRESS[".zst"](LINES))

    def fail(*arguments):
        raise SourceError("cannot be read on")
        yield

    monkeypatch.setattr("data_prep.sources.jsonl.stream_pieces", fail)
    with pytest.raises(SourceError, match="cannot be read on"):
        build([str(path)], bpe_path, tmp_path / "out", ARGUMENTS)


def test_few_pieces_exist_at_a_time(tmp_path, bpe_path, monkeypatch):
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(COMPRESS[".zst"](LINES))
    run_unit, most = build_module.run_unit, []

    def counting(job, unit):
        time.sleep(0.02)  # the reader gets on
        most.append(len(list((job.work / "spool").rglob("*.jsonl"))))
        return run_unit(job, unit)

    monkeypatch.setattr(build_module, "run_unit", counting)
    build([str(path)], bpe_path, tmp_path / "out", ARGUMENTS)
    assert len(most) > 15
    assert max(most) <= 5


def test_estimate_reads_the_first_piece_only(tmp_path, bpe_path, run):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    code, out, error = run(
        "build", "--source", "jsonl", "--input", path, "--tokenizer", bpe_path,
        "--output", tmp_path / "out", "--dry-run",
    )  # fmt: skip
    assert code == 0, error
    assert "documents" in out
    assert not (tmp_path / "out").exists()
    assert path.exists()


LARGE = """
import sys
from data_prep.sources import ranges
ranges.STREAM_BYTES, ranges.PIECE_BYTES, ranges.CHUNK = 10_000, 5000, 700
from data_prep.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_and_stopped_streams_go_on(tmp_path, bpe_path, workers, same_files):
    path = tmp_path / "x.jsonl.xz"
    path.write_bytes(lzma.compress(LINES * 3))
    (tmp_path / "large.py").write_text(LARGE)

    def command(output, workers):
        return [
            sys.executable, str(tmp_path / "large.py"), "build", "--source", "jsonl",
            "--input", str(path), "--tokenizer", str(bpe_path), "--output", str(output),
            "--workers", str(workers), "--validation-fraction", "0.2",
        ]  # fmt: skip

    assert main(command(tmp_path / "whole", 1)[2:]) == 0
    output = tmp_path / "out"
    for number, how in enumerate((signal.SIGKILL, signal.SIGTERM)):
        process = subprocess.Popen(
            command(output, workers), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        limit = time.monotonic() + 120
        while len(pieces_done(output)) < 4 * (number + 1) and time.monotonic() < limit:
            time.sleep(0.001)
        process.send_signal(how)
        _, error = process.communicate(timeout=300)
        if how == signal.SIGTERM:
            assert process.returncode == 130, error
            assert "run the same command again" in error
            assert "Traceback" not in error
        assert not (output / "manifest.json").exists()
    assert main(command(output, 1)[2:]) == 0
    assert same_files(output, tmp_path / "whole")
