"""Sentence segmenters: F1 of sentence ends, and speed, a core.

    python benchmarks/bench_segment.py --gold FILE ... [--language de] [--text FILE ...]
        [--errors 20] [--output results.json]

A gold FILE is one of:
- .jsonl, a document a line: {"paragraphs": [{"text", "spans": [[start, end], ...]}, ...]}, the
  spans of sentences in characters
- .conllu, as Universal Dependencies has it: ``# newdoc`` and ``# newpar`` begin documents and
  paragraphs, ``# text`` is a sentence, and ``SpaceAfter=No`` of its last word joins the next one

F1 in percent of sentence ends, the last of a text among them: by paragraph, each a text of its own;
and as one line, a document being a text, its paragraphs joined by spaces. Speed is measured on the
texts given (or on the gold, repeated): UTF-8 bytes in, byte offsets out, the best of three runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hardware import describe

from data_prep.errors import UsageError
from data_prep.segment.segmenters import NAMES, Segmenter, get_segmenter

SLOW_BYTES = 1 << 19  # the packages are slow: so much text is enough
FAST_BYTES = 16 << 20

Text = tuple[str, list[int]]  # and where its sentences end, in characters
Document = list[Text]  # its paragraphs


def load(path: Path) -> list[Document]:
    """The documents of a gold file."""
    if path.suffix == ".conllu":
        return [[join(p) for p in document] for document in _conllu(path)]
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        [(p["text"], [end for _, end in p["spans"]]) for p in json.loads(line)["paragraphs"]]
        for line in lines
    ]


def _conllu(path: Path) -> Iterator[list[list[Text]]]:
    """The paragraphs of each document, as sentences with the space after them."""
    document: list[list[Text]] = [[]]
    text = last = ""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith(("# newdoc", "# newpar")) and document[-1]:
            if line.startswith("# newdoc"):
                yield document
                document = []
            document.append([])
        elif line.startswith("# text = "):
            text = line.removeprefix("# text = ").strip()
        elif line:
            last = line
        elif text:
            joined = "SpaceAfter=No" in last or text[-1] >= "\u3000"  # the next one follows at once
            document[-1].append((text + ("" if joined else " "), [len(text)]))
            text = ""
    if document[-1]:
        yield document


def join(texts: list[Text], between: str = "") -> Text:
    """Several texts as one."""
    whole, ends = "", []
    for text, places in texts:
        whole += between if whole else ""
        ends += [len(whole) + place for place in places]
        whole += text
    return whole, ends


def ends_of(segmenter: Segmenter, text: str) -> set[int]:
    """Sentence ends in characters, before white space."""
    raw = text.encode()
    data = np.frombuffer(raw, np.uint8)
    ends, _ = segmenter.cut(data, np.array([len(data)]))
    return {len(raw[:end].decode().rstrip()) for end in ends.tolist()}


def score(segmenter: Segmenter, texts: list[Text], errors: list[str]) -> dict[str, float]:
    """F1, precision and recall in percent; what is wrong goes to ``errors``."""
    both = predicted = right = 0
    for text, gold in texts:
        ends, gold = ends_of(segmenter, text), {len(text[:end].rstrip()) for end in gold}
        both, predicted, right = both + len(ends & gold), predicted + len(ends), right + len(gold)
        for place in sorted(ends ^ gold):
            kind = "missed" if place in gold else "wrong "
            errors.append(f"{kind} {text[max(place - 40, 0) : place]}|{text[place : place + 30]}")
    return {
        "f1": round(200 * both / (predicted + right), 2),
        "precision": round(100 * both / predicted, 2),
        "recall": round(100 * both / right, 2),
    }


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
    parser.add_argument("--gold", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--text", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--language", default="en", metavar="CODE")
    parser.add_argument("--segmenters", nargs="+", default=[n for n in NAMES if n != "none"])
    parser.add_argument("--errors", type=int, default=0, metavar="N", help="print the first N")
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    corpora = {path.stem: load(path) for path in options.gold}
    text = b"\n\n".join(path.read_bytes() for path in options.text)
    text = text or "\n\n".join(p for c in corpora.values() for d in c for p, _ in d).encode()
    result: dict[str, Any] = {
        "hardware": describe(), "language": options.language, "segmenters": {},
    }  # fmt: skip
    print("F1 by paragraph / as one line")
    print(f"{'segmenter':12s} {'version':>9s} {'MB/s':>8s}  " + "  ".join(corpora))
    for name in options.segmenters:
        try:
            segmenter = get_segmenter(name, options.language)
        except UsageError as error:
            print(f"{name:12s} absent: {error}")
            result["segmenters"][name] = {"absent": str(error)}
            continue
        errors: list[str] = []
        scores = {
            corpus: {
                "by_paragraph": score(segmenter, [p for d in documents for p in d], errors),
                "one_line": score(segmenter, [join(d, " ") for d in documents], []),
            }
            for corpus, documents in corpora.items()
        }
        rate = speed(segmenter, text)
        result["segmenters"][name] = {
            "version": segmenter.version, "mb_per_cpu_s": rate, "scores": scores,
        }  # fmt: skip
        shown = (
            f"{s['by_paragraph']['f1']:.2f} / {s['one_line']['f1']:.2f}" for s in scores.values()
        )
        print(f"{name:12s} {segmenter.version:>9s} {rate:8.1f}  " + "  ".join(shown), flush=True)
        for line in errors[: options.errors]:
            print("  " + line.replace("\n", "\\n"))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
