"""Does time or memory a token grow with the length of a sentence?

    python benchmarks/bench_length.py [--config configs/model/gpst_tiny.yaml]

Forward and backward of GPST on the same number of tokens, cut into sentences of 16 ... 1024 tokens,
with random, right-branching and balanced boundary scores, all lengths in turns within one run.
Prints a table and one JSON line; the ratio is that of n = 1024 to n = 32.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics

import numpy as np
import torch
from hardware import describe
from stepping import Clock, load_model_config

from gpst.batch import ContextBatch
from gpst.model.gpst import GPSTModel
from gpst.model.losses import total_loss

LENGTHS = [16, 32, 64, 128, 256, 512, 1024]


def boundary_scores(shape: str, length: int, rng: np.random.Generator) -> np.ndarray:
    """(length,) scores whose top-down tree is random, right-branching or balanced."""
    if shape == "random":
        return rng.normal(size=length)
    if shape == "right":
        return -np.arange(length, dtype=float)
    scores = np.zeros(length)
    # The middle boundary of every span is the highest: rank it by the depth of its span.
    work = [(0, length - 1, 0.0)]
    while work:
        first, last, depth = work.pop()
        if first < last:
            middle = (first + last) // 2
            scores[middle] = -depth
            work += [(first, middle, depth + 1), (middle + 1, last, depth + 1)]
    return scores


def held_bytes(model: GPSTModel, batch: ContextBatch) -> int:
    """Bytes that the forward pass keeps for the backward pass: in its graph and in the chart."""

    def living() -> dict[int, int]:
        tensors = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
        storages = [x.untyped_storage() for x in tensors]
        return {storage.data_ptr(): storage.nbytes() for storage in storages}

    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    gc.collect()
    before = living()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = model(batch)
    storages = {**saved, **living()}
    del output
    return sum(size for storage, size in storages.items() if storage not in before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/model/gpst_tiny.yaml")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = GPSTModel(load_model_config(args.config, vocab_size=512)).train()
    rng = np.random.default_rng(0)
    cases = {}
    for shape in ("random", "right", "balanced"):
        for length in LENGTHS:
            sentences = [
                rng.integers(0, 512, length).tolist() for _ in range(args.tokens // length)
            ]
            per_context = max(1024 // length, 1)
            contexts = [
                sentences[i : i + per_context] for i in range(0, len(sentences), per_context)
            ]
            scores = np.concatenate([boundary_scores(shape, length, rng) for _ in sentences])
            cases[shape, length] = ContextBatch.from_sentences(contexts), torch.from_numpy(scores)
    times: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    memory: dict[tuple[str, int], float] = {}
    build = model.layout
    for number in range(args.repeat + 1):
        for case, (batch, scores) in cases.items():
            model.layout = lambda b, _, s=scores: build(b, s)  # type: ignore[method-assign]
            clock = Clock("cpu")
            total_loss(model(batch).losses, batch.counts).backward()
            model.zero_grad()
            if number:
                times[case].append(clock.lap())
            elif case[0] == "random":
                memory[case] = held_bytes(model, batch) / args.tokens
    print("scores    length   us a token   kB kept a token")
    median = {case: statistics.median(t) / args.tokens * 1e6 for case, t in times.items()}
    for (shape, length), us in median.items():
        per_token = memory.get((shape, length))
        shown = "" if per_token is None else f"{per_token / 1e3:12.1f}"
        print(f"{shape:9} {length:6} {us:12.1f} {shown}")
    report = {
        "benchmark": "length",
        "config": args.config,
        "tokens": args.tokens,
        "threads": args.threads,
        "torch": torch.__version__,
        "ratio_1024_to_32": {
            shape: round(median[shape, 1024] / median[shape, 32], 3)
            for shape in ("random", "right", "balanced")
        },
        "memory_ratio_1024_to_32": round(memory["random", 1024] / memory["random", 32], 3),
        "us_a_token": {f"{shape} {length}": round(us, 1) for (shape, length), us in median.items()},
        "hardware": describe(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
