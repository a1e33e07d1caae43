"""Full disks, missing permissions, bounded memory, hostile text, large shards."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from decoded import document_texts

from data_prep.build.build import build
from data_prep.build.encode import Encoder
from data_prep.build.job import BuildArguments
from data_prep.dataset.verify import verify
from data_prep.errors import DataPrepError, UsageError
from data_prep.format.manifest import (
    FileRecord,
    Manifest,
    ShardRecord,
    TokenizerRecord,
    write_manifest,
)
from data_prep.format.shard import open_dataset
from data_prep.segment.segmenters import get_segmenter
from data_prep.sources.options import SourceOptions
from data_prep.tokenizer.load import load_tokenizer
from data_prep.tokenizer.reference import ReferenceEngine

ARGUMENTS = BuildArguments(source="text", validation_fraction=0.0, unit_bytes=700)


def mounted(folder, options):
    """A fixture's file system in memory, with these options of mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)  # a worker may still look at it


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    yield from mounted(tmp_path / "small", "size=1m")


def test_full_disk(tmp_path, bpe_path, small_disk, monkeypatch):
    """A clear error; what is done is kept; the same call goes on when there is room."""
    from data_prep.build import build as module

    monkeypatch.setattr(module, "LEAST_FREE_BYTES", 0)
    rng = random.Random(0)
    text = "\n\n".join("".join(rng.choices("abcdefgh .", k=200)) for _ in range(6000))
    (tmp_path / "x.txt").write_text(text)
    arguments = replace(ARGUMENTS, options=SourceOptions(split_blank_lines=True), unit_bytes=40_000)
    monkeypatch.setattr("data_prep.sources.ranges.RANGE_BYTES", 40_000)
    inputs, output = [str(tmp_path / "x.txt")], small_disk / "out"
    with pytest.raises(DataPrepError, match=r"no space left for .* run the same command again"):
        build(inputs, bpe_path, output, arguments)
    done = len(list((output / ".work" / "units").glob("*.done")))
    assert 3 < done < 30
    assert not list(output.rglob("*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    dataset = build(inputs, bpe_path, output, arguments)
    expected = build(inputs, bpe_path, tmp_path / "out", arguments)
    assert dataset.manifest == expected.manifest
    assert verify(output) == []


def test_disk_that_fills_up_while_building(tmp_path, corpus, bpe_path, monkeypatch):
    from data_prep.build import build as module

    monkeypatch.setattr(module, "LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(DataPrepError, match="no space left"):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)


def test_disk_that_is_too_small_from_the_start(tmp_path, corpus, bpe_path, monkeypatch):
    from data_prep.build import build as module

    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: _Usage())
    with pytest.raises(UsageError, match=r"about 0.0 GB are needed, 0.0 GB are free"):
        build([str(corpus)], bpe_path, tmp_path / "out", ARGUMENTS)


class _Usage:
    free = 10


@pytest.fixture
def locked_folder(tmp_path):
    """A folder that nobody may write to, not even root."""
    folder = tmp_path / "locked"
    if os.geteuid() == 0:
        yield from mounted(folder, "ro")
        return
    folder.mkdir(0o500)
    yield folder
    folder.chmod(0o700)


def test_no_write_permission(locked_folder, corpus, bpe_path):
    for output in (locked_folder / "out", locked_folder):
        with pytest.raises(UsageError, match=r"output .* cannot be (made|written)"):
            build([str(corpus)], bpe_path, output, ARGUMENTS)


MESSY = {
    "nul": b"One\0two. Three",
    "bom": b"\xef\xbb\xbfFirst. Second.",
    "emoji": "😀👩‍👩‍👧 fun. 🇩🇪!".encode(),
    "right to left": "שלום עולם. مرحبا بالعالم! انتهى.".encode(),
    "no spaces": b"x" * 100_000,
    "no spaces, many bytes": "漢".encode() * 40_000,
    "stops": b"?!" * 50_000,
    "spaces": b"a " + b" " * 100_000 + b"b",
    "newlines": b"a" + b"\n" * 100_000 + b"b.",
    "combining": ("e" + "\u0301" * 5000).encode(),
    "end of text": b"A <|endoftext|> is here. <|endoftext|>",
    "windows": b"One.\r\nTwo.\r\n\r\nThree.",
    "invalid": "café and naïveté, 30 €, “so”, übermorgen: ".encode() * 9 + b"\xff \xe9 ok",
    "zero width": "a\u200bb\u200d\ufeffc".encode(),
}


@pytest.mark.parametrize("engine", ["tokenizers", "auto"])
def test_messy_text(tmp_path, bpe_path, engine):
    """All of it passes, and comes back as it was but for what the cleaning says."""
    from data_prep.build.build import BuildOptions

    (tmp_path / "in").mkdir()
    for number, content in enumerate(MESSY.values()):
        (tmp_path / "in" / f"{number:02d}.txt").write_bytes(content)
    dataset = build(
        [str(tmp_path / "in")], bpe_path, tmp_path / "out", ARGUMENTS, BuildOptions(engine=engine)
    )
    found = dict(zip(MESSY, ("".join(d) for d in document_texts(dataset)), strict=True))
    expected = {
        name: content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").replace("\0", "")
        for name, content in MESSY.items()
    }
    expected["windows"] = "One.\nTwo.\n\nThree."
    assert found == expected
    assert verify(dataset.path) == []
    # a literal end-of-text is text: the id ends documents, and nothing else
    shard, end = dataset.shards("train")[0], dataset.manifest.tokenizer.end_of_document_id
    assert int((shard.tokens[:] == end).sum()) == len(MESSY)


def test_long_sentences_are_not_cut_inside_a_character(bpe_path):
    loaded = load_tokenizer(bpe_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 8)
    data = np.frombuffer("漢é😀".encode() * 50, np.uint8)
    encoded = encoder.encode(data, np.array([len(data)]))
    tokens = encoder.layout(encoded, np.ones(1, np.bool_))
    pieces = np.split(tokens.tokens, tokens.sentence_ends[:-1])[:-1]
    texts = [loaded.reference().decode(p.tolist(), skip_special_tokens=False) for p in pieces]
    assert "".join(texts) == "漢é😀" * 50
    assert tokens.num_cut == 0
    assert tokens.num_cut_words > 20


def test_a_very_long_line(tmp_path, bpe_path):
    line = json.dumps({"text": "A sentence of fair length stands here. " * 40_000})
    (tmp_path / "x.jsonl").write_text(f'{{"text": "one"}}\n{line}\n{{"text": "two"}}\n')
    arguments = BuildArguments(source="jsonl", validation_fraction=0.0)
    dataset = build([str(tmp_path / "x.jsonl")], bpe_path, tmp_path / "out", arguments)
    texts = ["".join(sentences) for sentences in document_texts(dataset)]
    assert texts[0] == "one"
    assert texts[-1] == "two"
    assert "".join(texts[1:-1]) == json.loads(line)["text"].strip()


def test_shards_of_more_than_four_gigabytes(tmp_path):
    """Offsets are 64 bits: a sparse shard of 2.2 billion tokens, read and checked in its parts."""
    tokens, path = 2_200_000_000, tmp_path / "shard-00000.tokens.npy"
    from data_prep.files import HashingWriter, npy_header

    header = npy_header(np.dtype("<u2"), tokens)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + 2 * tokens)
    files = {"tokens": FileRecord(len(header) + 2 * tokens, "")}
    for array, values in (("sentence_ends", [tokens - 1, tokens]), ("document_ends", [2])):
        writer = HashingWriter(tmp_path / f"shard-00000.{array}.npy", "uint64", len(values))
        writer.write(np.array(values))
        files[array] = FileRecord(*writer.close())
    record = ShardRecord("shard-00000", "train", tokens, 2, 1, files)
    tokenizer = TokenizerRecord("none", "other", "", 0, 0)
    write_manifest(tmp_path, Manifest(10, "uint16", tokenizer, (record,)))
    shard = open_dataset(tmp_path).shards("train")[0]
    start, end = int(shard.sentence_ends[0]), int(shard.sentence_ends[1])
    assert shard.tokens[start:end].tolist() == [0]
    assert path.stat().st_blocks * 512 < 1 << 20


MEASURE = """
import sys
from data_prep.build.build import build
from data_prep.build.encode import Encoder
from data_prep.build.job import BuildArguments
from data_prep.sources.options import SourceOptions
source, path, tokenizer, output, split = sys.argv[1:]
options = SourceOptions(split_blank_lines=split == "1")
build([path], tokenizer, output, BuildArguments(source, options))
# not getrusage: that counts the process that started this one, too
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) // 1024)
"""


def peak_mib(source, path, tokenizer, output, split="0"):
    """The most memory of a build in one process, MiB."""
    arguments = [
        sys.executable,
        "-c",
        MEASURE,
        source,
        str(path),
        str(tokenizer),
        str(output),
        split,
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return int(done.stdout)


def write_text(path, num_bytes, separator):
    """Text of a size, of random words (so that no cache of words stays small)."""
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(50_000)]
    with open(path, "w") as file:
        while file.tell() < num_bytes:
            text = " ".join(rng.choices(words, k=2000)) + "." + separator
            file.write(text * 20)


def test_memory_does_not_grow_with_the_input(tmp_path, bpe_path):
    peaks = []
    for megabytes in (8, 40):
        write_text(tmp_path / "x.txt", megabytes * 10**6, "\n\n")
        out = tmp_path / f"out-{megabytes}"
        peaks.append(peak_mib("text", tmp_path / "x.txt", bpe_path, out, "1"))
    assert peaks[1] < 400, peaks
    assert peaks[1] - peaks[0] < 120, peaks


@pytest.mark.slow
def test_memory_on_a_line_of_fifty_megabytes(tmp_path, bpe_path):
    """No more than for all else: its text is decoded piece by piece."""
    write_text(tmp_path / "x.txt", 50 * 10**6, " ")
    lines = [json.dumps({"text": (tmp_path / "x.txt").read_text()}), '{"text": "end"}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    assert peak_mib("jsonl", tmp_path / "x.jsonl", bpe_path, tmp_path / "out") < 400
    assert open_dataset(tmp_path / "out").manifest.counters["documents_cut_too_long"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("split", ["0", "1"])
def test_memory_on_two_gigabytes(tmp_path, bpe_path, split):
    write_text(tmp_path / "x.txt", 2 * 10**9, "\n\n")
    try:
        assert peak_mib("text", tmp_path / "x.txt", bpe_path, tmp_path / "out", split) < 400
    finally:  # pytest keeps the folders of the last runs
        (tmp_path / "x.txt").unlink()
