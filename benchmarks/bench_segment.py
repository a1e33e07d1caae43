"""Sentence segmenters: boundary F1 and speed, a core.

    python benchmarks/bench_segment.py --data DIR [--text FILE ...] [--output results.json]

DIR holds ``*.jsonl`` files of documents {"paragraphs": [{"text", "spans": [[start, end], ...]}]},
spans in characters. A boundary is the end of a sentence; ``f1`` counts all of them, ``inner f1``
leaves out the ends of paragraphs, which nobody can miss. Speed is measured on the texts given (or
on DIR's own, repeated): UTF-8 bytes in, byte offsets out, the best of three runs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from hardware import describe

from data_prep.errors import UsageError
from data_prep.segment.segmenters import NAMES, Segmenter, get_segmenter

SLOW_BYTES = 2 << 20  # the packages are slow: so much text is enough
FAST_BYTES = 64 << 20

Paragraph = tuple[str, list[int]]


def load(path: Path) -> list[Paragraph]:
    """(text, ends of sentences in characters) of each paragraph."""
    paragraphs: list[Paragraph] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        for paragraph in json.loads(line)["paragraphs"]:
            paragraphs.append((paragraph["text"], [end for _, end in paragraph["spans"]]))
    return paragraphs


def ends_of(segmenter: Segmenter, text: str) -> set[int]:
    """Sentence ends in characters, before white space."""
    raw = text.encode()
    data = np.frombuffer(raw, np.uint8)
    ends, _ = segmenter.cut(data, np.array([len(data)]))
    return {len(raw[:end].decode().rstrip()) for end in ends.tolist()}


def score(segmenter: Segmenter, paragraphs: list[Paragraph]) -> dict[str, float]:
    """F1, precision and recall in percent; ``inner`` without the ends of paragraphs."""
    counts = np.zeros((2, 3), np.int64)  # predicted and right, predicted, right; all and inner
    for text, gold in paragraphs:
        predicted, right = ends_of(segmenter, text), set(gold)
        last = {max(right), len(text)}
        for row, skip in ((0, set()), (1, last)):
            a, b = predicted - skip, right - skip
            counts[row] += len(a & b), len(a), len(b)
    both, predicted, right = (counts.astype(float) + 1e-12).T
    precision, recall = 100 * both / predicted, 100 * both / right
    f1 = 200 * both / (predicted + right)
    return {
        "f1": round(f1[0], 2), "precision": round(precision[0], 2),
        "recall": round(recall[0], 2), "inner_f1": round(f1[1], 2),
    }  # fmt: skip


def speed(segmenter: Segmenter, text: bytes) -> float:
    """MB of UTF-8 a second of one core."""
    size = FAST_BYTES if segmenter.name == "fast" else SLOW_BYTES
    pieces = (text * (size // len(text) + 1))[:size].decode(errors="ignore").encode()
    data = np.frombuffer(pieces, np.uint8)
    ends = np.arange(1 << 14, len(data), 1 << 14)
    ends = np.append(ends, len(data))
    # a document must not begin inside a character
    while (inside := (data[ends[:-1]] & 0xC0) == 0x80).any():
        ends[:-1] += inside
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        segmenter.cut(data, ends)
        best = min(best, time.process_time() - start)
    return round(len(data) / best / 1e6, 2)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--text", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--segmenters", nargs="+", default=[n for n in NAMES if n != "none"])
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    corpora = {path.stem: load(path) for path in sorted(options.data.glob("*.jsonl"))}
    if not corpora:
        raise SystemExit(f"error: {options.data} holds no .jsonl file with paragraphs and spans")
    text = b"\n\n".join(path.read_bytes() for path in options.text)
    text = text or "\n\n".join(t for c in corpora.values() for t, _ in c).encode()
    result = {"hardware": describe(), "corpora": sorted(corpora), "segmenters": {}}
    print(f"{'segmenter':12s} {'version':>9s} {'MB/s':>8s}  " + "  ".join(corpora))
    for name in options.segmenters:
        try:
            segmenter = get_segmenter(name)
        except UsageError as error:
            print(f"{name:12s} absent: {error}")
            result["segmenters"][name] = {"absent": str(error)}
            continue
        scores = {corpus: score(segmenter, paragraphs) for corpus, paragraphs in corpora.items()}
        rate = speed(segmenter, text)
        result["segmenters"][name] = {
            "version": segmenter.version, "mb_per_cpu_s": rate, "scores": scores,
        }  # fmt: skip
        shown = "  ".join(f"{s['f1']:6.2f} (inner {s['inner_f1']:.2f})" for s in scores.values())
        print(f"{name:12s} {segmenter.version:>9s} {rate:8.1f}  {shown}", flush=True)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
