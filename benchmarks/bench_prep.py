"""How fast does raw text become a dataset, end to end, and where does the time go?

    python benchmarks/bench_prep.py --input TEXT_FILES --tokenizer DIR --workers 2 [--output FILE]

The text is packed as parquet and as the original OpenWebText release (tar in xz), then built: read,
clean, hash, segment, encode, write, assemble. MB of UTF-8 text per CPU-second of all processes of a
build with one worker, rounds interleaved with the peers, median of the rounds. What loading code
and tokenizer takes, the median of almost empty builds, is taken off; for little text that
difference is noise, and the steps alone, timed in one process, are the number to compare. Peers
work on ``--peer-mib`` MiB of the same text: this pipeline on ``tokenizers``; ``datasets.map`` with
punkt and ``tokenizers``; nanoGPT's way (``datasets.map`` with tiktoken, no sentences); Megatron-LM
and datatrove when they are installed, else their absence is stated. With --repeat N the text is
repeated, which flatters engines that remember words: both numbers are worth having. What a second
worker gains is printed beside what the machine's cores give to builds that share nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from unittest.mock import patch

import bench_prep_peers as peers
import pyarrow as pa
import pyarrow.parquet as pq
from hardware import describe

DOCUMENT_BYTES = 5000  # about OpenWebText's mean page
PAGES_IN_ARCHIVE = 400
SLOW = "parquet, engine tokenizers"


def load_documents(paths: list[Path], repeat: int) -> list[str]:
    """The text of files, cut at blank lines into documents of the size of a web page."""
    documents: list[str] = []
    for path in paths:
        blocks, size = [], 0
        for block in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            blocks.append(block)
            size += len(block)
            if size > DOCUMENT_BYTES:
                documents.append("\n\n".join(blocks))
                blocks, size = [], 0
        documents.append("\n\n".join(blocks))
    return [d for d in documents if d.strip()] * repeat


def write_parquet(path: Path, documents: list[str]) -> None:
    """One file, row groups of 2000, zstd as the Hub has them."""
    table = pa.table({"text": pa.array(documents, pa.large_string())})
    pq.write_table(table, path, row_group_size=2000, compression="zstd")


def tar_of_pages(documents: list[str], first: int = 0) -> bytes:
    """A tar with a .txt member a page, numbered from ``first`` on."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for page, text in enumerate(documents, first):
            raw = text.encode()
            info = tarfile.TarInfo(f"{page:07d}-0123456789abcdef.txt")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def write_release(folder: Path, documents: list[str]) -> None:
    """openwebtext/urlsf_subsetNN-MM_data.xz."""
    folder.mkdir()
    for number, first in enumerate(range(0, len(documents), PAGES_IN_ARCHIVE)):
        pages = tar_of_pages(documents[first : first + PAGES_IN_ARCHIVE], first)
        path = folder / f"urlsf_subset{number // 100:02d}-{number % 100}_data.xz"
        path.write_bytes(lzma.compress(pages))


def build(
    source: str, path: Path, tokenizer: Path, output: Path, workers: int, engine: str
) -> tuple[float, float]:
    """(CPU seconds of all processes, wall seconds) of a build from a fresh start."""
    shutil.rmtree(output, ignore_errors=True)
    command = [
        sys.executable, "-m", "data_prep", "build", "--source", source, "--input", str(path),
        "--tokenizer", str(tokenizer), "--output", str(output), "--workers", str(workers),
        "--engine", engine,
    ]  # fmt: skip
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return used, wall


def breakdown(source: str, path: Path, tokenizer: Path, output: Path) -> dict[str, float]:
    """CPU seconds of each step of a build in this process, all code warm."""
    import data_prep.build.build as whole
    from data_prep.build import encode, unit
    from data_prep.build.job import BuildArguments

    spent: Counter[str] = Counter()

    def timed(step: str, function: Callable) -> Callable:
        def run(*arguments, **keywords):
            start = time.process_time()
            try:
                return function(*arguments, **keywords)
            finally:
                spent[step] += time.process_time() - start

        return run

    read_parts = unit.read_parts

    def timed_read(*arguments):
        batches = read_parts(*arguments)
        advance = timed("read", lambda: next(batches, None))
        while (batch := advance()) is not None:
            yield batch

    make_encoder = unit._encoder.__wrapped__

    @cache
    def timed_encoder(job):
        encoder = make_encoder(job)
        encoder.segmenter.cut = timed("segment", encoder.segmenter.cut)
        encoder.engine.encode = timed("encode", encoder.engine.encode)
        return encoder

    steps = [
        (unit, "clean_documents", "clean"),
        (unit, "_hash_documents", "hash documents"),
        (encode.Encoder, "layout", "lay out"),
        (unit.UnitWriter, "write", "write units"),
        (unit.UnitWriter, "close", "write units"),
        (whole, "write_shard", "assemble and hash shards"),
    ]
    with ExitStack() as patches:
        for owner, name, step in steps:
            timed_step = timed(step, getattr(owner, name))
            patches.enter_context(patch.object(owner, name, timed_step))
        patches.enter_context(patch.object(unit, "read_parts", timed_read))
        patches.enter_context(patch.object(unit, "_encoder", timed_encoder))
        shutil.rmtree(output, ignore_errors=True)
        start = time.process_time()
        whole.build([str(path)], tokenizer, output, BuildArguments(source))
        spent["all"] = time.process_time() - start
    return {step: round(seconds, 3) for step, seconds in spent.items()}


def measure(options: argparse.Namespace, folder: Path) -> dict:
    """All rounds; MB per CPU-second of each contestant."""
    documents = load_documents(options.input, options.repeat)
    megabytes = sum(len(d.encode()) for d in documents) / 1e6
    few, limit = [], options.peer_mib * 2**20
    for document in documents:
        few.append(document)
        limit -= len(document.encode())
        if limit < 0:
            break
    few_megabytes = sum(len(d.encode()) for d in few) / 1e6
    write_parquet(folder / "all.parquet", documents)
    write_parquet(folder / "few.parquet", few)
    write_parquet(folder / "one.parquet", documents[:1])
    write_release(folder / "openwebtext", documents)
    print(f"{megabytes:.1f} MB of text, {few_megabytes:.1f} MB for the peers", flush=True)
    out, tok = folder / "out", options.tokenizer
    ours = {
        "parquet": ("parquet", folder / "all.parquet", "auto", megabytes),
        "tar.xz": ("openwebtext", folder / "openwebtext", "auto", megabytes),
        SLOW: ("parquet", folder / "few.parquet", "tokenizers", few_megabytes),
    }
    starts: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    build("parquet", folder / "one.parquet", tok, out, 1, "auto")  # fills caches
    for _ in range(options.rounds):
        for name, (source, path, engine, _) in ours.items():
            start, _ = build("parquet", folder / "one.parquet", tok, out, 1, engine)
            starts.setdefault(engine, []).append(start)
            used.setdefault(name, []).append(build(source, path, tok, out, 1, engine)[0])
        for name, peer in peers.PEERS.items():
            try:
                seconds = peer(folder / "few.parquet", tok)
                rates.setdefault(name, []).append(few_megabytes / seconds)
            except peers.AbsentError as error:
                absent[name] = str(error)
    for name, (_, _, engine, size) in ours.items():
        start = statistics.median(starts[engine])
        rates[name] = [size / (seconds - start) for seconds in used[name]]
    result = {
        "hardware": describe(),
        "megabytes": round(megabytes, 1),
        "peer_megabytes": round(few_megabytes, 1),
        "repeat": options.repeat,
        "mb_per_cpu_s": {
            name: {"median": round(statistics.median(r), 2), "rounds": [round(x, 2) for x in r]}
            for name, r in rates.items()
        },
        "absent": absent,
        "steps_mb_per_cpu_s": {},
        "breakdown_cpu_s": {},
    }
    for source, path in (("parquet", "all.parquet"), ("openwebtext", "openwebtext")):
        breakdown(source, folder / path, tok, out)  # warm
        turns = [breakdown(source, folder / path, tok, out) for _ in range(options.rounds)]
        steps = {step: statistics.median(turn[step] for turn in turns) for step in turns[0]}
        result["breakdown_cpu_s"][source] = steps
        alone = [megabytes / (sum(turn.values()) - turn["all"]) for turn in turns]
        result["steps_mb_per_cpu_s"][source] = [round(rate, 1) for rate in alone]
    result |= scaling(folder / "all.parquet", tok, out, options)
    return result


def scaling(path: Path, tok: Path, out: Path, options: argparse.Namespace) -> dict:
    """Wall seconds with 1 and N workers, and what N cores of this machine can give at best.

    That is: N builds of one worker at the same time, which share nothing but the machine.
    """
    walls: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for workers in sorted({1, options.workers}):
            wall = build("parquet", path, tok, out, workers, "auto")[1]
            walls.setdefault(str(workers), []).append(wall)
        outs = [out.with_name(f"{out.name}{n}") for n in range(options.workers)]
        with ThreadPoolExecutor(len(outs)) as pool:
            each = pool.map(lambda o: build("parquet", path, tok, o, 1, "auto")[1], outs)
            walls.setdefault("side by side", []).append(max(each))
    seconds = {name: statistics.median(values) for name, values in walls.items()}
    one = seconds["1"]
    return {
        "wall_s_by_workers": {name: round(value, 2) for name, value in seconds.items()},
        "speed_up": round(one / seconds[str(options.workers)], 2),
        "speed_up_of_machine": round(options.workers * one / seconds["side by side"], 2),
    }


def show(result: dict) -> None:
    """The table."""
    print(f"{'':34s} {'MB/CPU-s':>9s}  rounds")
    for name, values in result["mb_per_cpu_s"].items():
        print(f"{name:34s} {values['median']:9.2f}  {values['rounds']}")
    for name, reason in result["absent"].items():
        print(f"{name:34s}    absent  {reason}")
    rates = {name: values["median"] for name, values in result["mb_per_cpu_s"].items()}
    if min(x for values in result["mb_per_cpu_s"].values() for x in values["rounds"]) <= 0:
        print("a build took no longer than an empty one: too little text; --repeat or --peer-mib")
    ratio = rates["parquet"] / rates[SLOW]
    print(f"parquet against the same pipeline on tokenizers: {ratio:.1f}x")
    for source, steps in result["breakdown_cpu_s"].items():
        print(f"{source}, its steps alone: {result['steps_mb_per_cpu_s'][source]} MB/CPU-s")
        print(f"{source}, CPU seconds: " + ", ".join(f"{k} {v}" for k, v in steps.items()))
    print(
        f"wall seconds by workers: {result['wall_s_by_workers']};"
        f" {result['speed_up']} times as fast, apart {result['speed_up_of_machine']} times"
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-mib", type=float, default=4)
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    show(result)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
