"""How fast is the chart plan, and how large are the charts?

    python benchmarks/bench_plan.py [--tokens 32768]

Plans sentences of 24 tokens with random scores, both schedules, 1 and 2 threads in turns. The first
call of each compiles (or loads from numba's cache) and is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
from hardware import describe

from gpst.chart.layout import build_layout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--sentence-tokens", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=10)
    args = parser.parse_args()
    num_sentences = args.tokens // args.sentence_tokens
    ends = args.sentence_tokens * np.arange(1, num_sentences + 1)
    rng = np.random.default_rng(0)
    cases = [(schedule, threads) for schedule in ("score", "height") for threads in (1, 2)]
    times: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    sizes: dict[str, dict[str, float]] = {}
    for number in range(args.repeat + 1):
        scores = rng.normal(size=ends[-1])
        for schedule, threads in cases:
            start = time.perf_counter()
            layout = build_layout(scores, ends, schedule=schedule, num_threads=threads)
            if number:
                times[schedule, threads].append(time.perf_counter() - start)
            sizes[schedule] = {
                "edges_a_token": round(len(layout.parent) / layout.num_tokens, 3),
                "cells_a_token": round(layout.num_cells / layout.num_tokens, 3),
                "levels": len(layout.levels),
            }
    for (schedule, threads), measured in times.items():
        spread = f"{min(measured) * 1e3:.1f}..{max(measured) * 1e3:.1f}"
        print(
            f"{schedule:7} {threads} threads {statistics.median(measured) * 1e3:7.1f} ms ({spread})"
        )
    report = {
        "benchmark": "plan",
        "tokens": args.tokens,
        "median_ms": {
            f"{s} {t} threads": round(statistics.median(v) * 1e3, 1) for (s, t), v in times.items()
        },
        "charts": sizes,
        "hardware": describe(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
