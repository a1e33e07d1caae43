"""How much memory does a worker of data_prep take on a large input, and what gains a second one?

    python benchmarks/bench_prep_memory.py --input TEXT_FILES --tokenizer DIR --gb 2 --workers 2

The text is written again and again, each time with the letters permuted, until there are --gb
gigabytes: a wider vocabulary than any real text has, which an encoder's memory grows with. It is
packed as parquet, as one jsonl.zst, and as the OpenWebText release (fast xz), and each is built
with --workers. Peak memory is VmHWM of the leading process and of each worker (Linux). Parquet is
built with one worker too; wall seconds say something on a machine with nothing else to do. Prints
a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import shutil
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from bench_prep import load_documents, tar_of_pages
from hardware import describe

LOOK_EVERY_S = 0.2


def permuted(documents: list[str], seed: int) -> list[str]:
    """The documents with other letters for the letters; as they are for seed 0."""
    lower = string.ascii_lowercase
    other = lower if seed == 0 else "".join(random.Random(seed).sample(lower, len(lower)))
    table = str.maketrans(lower + lower.upper(), other + other.upper())
    return [document.translate(table) for document in documents]


def write_inputs(documents: list[str], target: float, folder: Path) -> dict[str, tuple[str, Path]]:
    """{name: (source, path)}; each holds the same text."""
    schema = pa.schema([("text", pa.large_string())])
    release = folder / "openwebtext"
    release.mkdir()
    size = number = 0
    with (
        pq.ParquetWriter(folder / "all.parquet", schema, compression="zstd") as parquet,
        open(folder / "all.jsonl.zst", "wb") as file,
        zstandard.ZstdCompressor(3).stream_writer(file) as lines,
    ):
        while size < target:
            texts = permuted(documents, number)
            table = pa.table({"text": pa.array(texts, pa.large_string())}, schema)
            parquet.write_table(table, row_group_size=2000)
            lines.write("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
            path = release / f"urlsf_subset{number // 100:02d}-{number % 100}_data.xz"
            path.write_bytes(lzma.compress(tar_of_pages(texts), preset=0))
            size += sum(len(text.encode()) for text in texts)
            number += 1
    print(f"{size / 1e9:.2f} GB of text", flush=True)
    return {
        "parquet": ("parquet", folder / "all.parquet"),
        "jsonl.zst": ("jsonl", folder / "all.jsonl.zst"),
        "tar.xz": ("openwebtext", release),
    }


def build(source: str, path: Path, tokenizer: Path, output: Path, workers: int) -> dict:
    """Wall seconds, and MiB at the peak of the leading process and of its workers."""
    shutil.rmtree(output, ignore_errors=True)
    command = [
        sys.executable, "-m", "data_prep", "build", "--source", source, "--input", str(path),
        "--tokenizer", str(tokenizer), "--output", str(output), "--workers", str(workers),
        "--quiet",
    ]  # fmt: skip
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children()]:
            peaks[each.pid] = max(_peak_mib(each.pid), peaks.get(each.pid, 0))
        time.sleep(LOOK_EVERY_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    lead = peaks.pop(process.pid)
    # Python's resource tracker is a child too.
    others = sorted((mib for mib in peaks.values() if mib > 50), reverse=True)
    return {"wall_s": round(time.perf_counter() - start, 1), "lead_mib": lead, "worker_mib": others}


def _peak_mib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
    except (OSError, StopIteration):  # it has ended
        return 0


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR")
    parser.add_argument("--gb", type=float, default=2)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    report: dict = {"benchmark": "prep_memory", "gb": args.gb, "hardware": describe()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = write_inputs(load_documents(args.input, 1), args.gb * 1e9, folder)
        for kind, (source, path) in inputs.items():
            for workers in sorted({1, args.workers}) if kind == "parquet" else [args.workers]:
                measured = build(source, path, args.tokenizer, folder / "out", workers)
                report[f"{kind}, {workers} workers"] = measured
                print(f"{kind:10} {workers} workers  {measured}", flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
