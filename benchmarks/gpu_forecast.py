"""How long a training step takes on an A100 and on an H100, and what it launches: without a GPU.

    python benchmarks/gpu_forecast.py --config configs/model/gpst_small.yaml --contexts 8

The real code goes through a micro-batch, forward and backward, on tensors without storage that
claim to be on a GPU (benchmarks/forecast). Beside GPST stands the GPT-2 of its size, whose GELU is
one kernel and whose attention is fused. How to read it: docs/gpu_forecast.md. Prints a table by
part and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

import torch
from forecast.gpus import A100, GPUS, H100, seconds
from forecast.measuring import measured_ms
from forecast.step import Forecast, forecast
from forecast.text import Trees, batch_of, boundary_scores, real_contexts
from stepping import load_model_config, partner

from gpst.config import GPSTConfig


def both(
    config: GPSTConfig, contexts: int, trees: Trees, checkpointing: frozenset[str]
) -> tuple[Forecast, Forecast]:
    """GPST's and GPT-2's step on the same contexts of real text."""
    batch = batch_of(real_contexts(contexts))
    scores = boundary_scores(batch, trees)
    ours = forecast(config, batch, scores, checkpointing)
    return ours, forecast(partner(config), batch, scores, checkpointing & {"generator"})


def ratio(ours: Forecast, theirs: Forecast, number: int) -> float:
    """Of the times on a GPU, each in the middle of its range."""
    gpu = GPUS[number]
    return sum(ours.seconds(gpu)) / sum(theirs.seconds(gpu))


def summary(ours: Forecast, theirs: Forecast) -> dict[str, Any]:
    """The numbers that are compared between versions."""
    return {
        "kernels": ours.launches,
        "ratio_a100": round(ratio(ours, theirs, GPUS.index(A100)), 3),
        "ratio_h100": round(ratio(ours, theirs, GPUS.index(H100)), 3),
        "memory_ratio": round(ours.peak / theirs.peak, 3),
        "kernels_gpt2": theirs.launches,
        "host_waits": len(ours.record.waits),
        "host_waits_gpt2": len(theirs.record.waits),
        "peak_gib": round(ours.peak / 2**30, 2),
        "peak_gib_gpt2": round(theirs.peak / 2**30, 2),
    }


def table(name: str, found: Forecast) -> list[str]:
    """By part: kernels forward and backward, milliseconds of GPUs."""
    head = "".join(f"{gpu.name + ' ms':>12}" for gpu in GPUS)
    lines = [f"{name:14}{'forward':>9}{'backward':>10}{head}"]
    by_gpu = [found.by_part(gpu) for gpu in GPUS]
    for part, (forward, backward, _) in sorted(by_gpu[0].items(), key=lambda item: -item[1][2]):
        times = "".join(f"{parts[part][2] * 1e3:12.2f}" for parts in by_gpu)
        lines.append(f"  {part:12}{forward:9.0f}{backward:10.0f}{times}")
    ranges = ""
    for gpu in GPUS:
        low, high = found.seconds(gpu)
        ranges += f"{low * 1e3:6.1f}-{high * 1e3:.1f}".rjust(12)
    return [*lines, f"  {'a step':12}{found.launches:19}{ranges}", ""]


def print_top(found: Forecast, count: int) -> None:
    """The lines of code that launch most."""
    launches: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for event in found.record.events:
        launches[event.place.line, event.name] += event.cost.launches
        times[event.place.line, event.name] += seconds(event.cost, A100)  # type: ignore[assignment]
    for key, number in sorted(launches.items(), key=lambda item: -times[item[0]])[:count]:
        print(f"  {number:7} {times[key] * 1e3:8.2f} ms  {' '.join(key)}")


def measure(config: GPSTConfig, contexts: int, device: str) -> dict[str, Any]:
    """Milliseconds of both on a device that is here."""
    rows, repeat = real_contexts(contexts), 5 if device == "cuda" else 1
    if device == "cpu":
        rows = [row[:2] for row in rows]
    ours = measured_ms(config, rows, device, repeat)
    theirs = measured_ms(partner(config), rows, device, repeat)
    name = torch.cuda.get_device_name() if device == "cuda" else "two sentences on the CPU"
    print(f"measured  {name}: GPST {ours:.2f} ms, GPT-2 {theirs:.2f} ms, {ours / theirs:.3f}")
    return {"measured_ratio": round(ours / theirs, 3), "measured_ms": round(ours, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/model/gpst_small.yaml")
    parser.add_argument("--contexts", type=int, default=8)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--trees", choices=["random", "right-branching"], default="random")
    parser.add_argument("--recompute", nargs="*", default=[], choices=["composition", "generator"])
    parser.add_argument("--top", type=int, default=0, help="lines of code that take longest")
    parser.add_argument("--measure", choices=["cuda", "cpu"], help="measure a step beside it")
    args = parser.parse_args()
    config = load_model_config(args.config, args.vocab_size)
    ours, theirs = both(config, args.contexts, args.trees, frozenset(args.recompute))
    for name, found in (("GPST", ours), ("GPT-2", theirs)):
        print("\n".join(table(name, found)))
        if args.top:
            print_top(found, args.top)
    for what in ("waits", "mixed", "pageable"):
        lines = Counter(event.place.line for event in getattr(ours.record, what))
        found = ", ".join(f"{line} ({count})" for line, count in lines.items())
        print(f"{what:9} {found or 'none'}")
    measured = measure(config, args.contexts, args.measure) if args.measure else {}
    head = {"benchmark": "gpu_forecast", "config": args.config, "contexts": args.contexts}
    head |= {"trees": args.trees, "recompute": args.recompute, "torch": torch.__version__}
    print(json.dumps(head | summary(ours, theirs) | measured))


if __name__ == "__main__":
    main()
