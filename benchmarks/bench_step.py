"""How much longer is a training step of GPST than one of GPT-2 on the same tokens?

    python benchmarks/bench_step.py --config configs/model/gpst_small.yaml --tokens 2048 --repeat 5

Both models take the same contexts of whole sentences through forward, backward, clipping and AdamW,
in turns within one run; the ratio is taken pair by pair. The GPT-2 has the generator's width and as
many layers as the generator's type and token layers together (the paper's sizes). On one thread the
time is that of the CPU, which waiting for other processes does not count in. Beside it stands the
ratio of their arithmetic, which is the ratio of times at equal speed. Peak memory is that of
processes of their own. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from hardware import describe
from stepping import Parts, Trainer, load_model_config, make_batch, partner

from gpst.model.build import build_model
from pipeline.cost.flops import batch_flops

MODELS = ("gpst", "gpst_recomputed", "gpt2")


def make_trainer(name: str, args: argparse.Namespace) -> Trainer:
    config = load_model_config(args.config, args.vocab_size, args.schedule)
    torch.manual_seed(0)
    model = build_model(partner(config) if name == "gpt2" else config)
    if name == "gpst_recomputed":
        model.activation_checkpointing = {"composition"}  # type: ignore[assignment]
    return Trainer(model, args.device, args.bf16)


def batch_of(args: argparse.Namespace, number: int):
    config = load_model_config(args.config, args.vocab_size, args.schedule)
    return make_batch(config, args.tokens, args.context_tokens, number).to(args.device)


def peak_gib(name: str, args: argparse.Namespace) -> float:
    """Peak memory of a process that makes two steps of one model."""
    command = [sys.executable, *sys.argv, "--memory-of", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(args: argparse.Namespace) -> None:
    trainer = make_trainer(args.memory_of, args)
    for number in range(2):
        trainer.step(batch_of(args, number))
    if args.device == "cuda":
        print(torch.cuda.max_memory_allocated() / 2**30)
    else:
        # Not ru_maxrss: a process inherits that of the one that started it.
        lines = Path("/proc/self/status").read_text().splitlines()
        print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20)


def arithmetic_ratio(args: argparse.Namespace) -> float:
    """GPST / GPT-2 in products' multiplications and additions: the ratio at equal speed."""
    config = load_model_config(args.config, args.vocab_size, args.schedule)
    batch = batch_of(args, args.repeat).to("cpu")
    with torch.no_grad():
        sizes = build_model(config)(batch, noise=1.0).sizes
    ours, theirs = batch_flops(config, batch, sizes), batch_flops(partner(config), batch, {})
    return ours.total / theirs.total


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/model/gpst_small.yaml")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--context-tokens", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--checkpointing", action="store_true", help="recompute the composition")
    parser.add_argument("--schedule", choices=["score", "height"])
    parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    parser.add_argument("--memory-of", choices=MODELS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        print_peak(args)
        return
    kind = "gpst_recomputed" if args.checkpointing else "gpst"
    trainers = {"gpst": make_trainer(kind, args), "gpt2": make_trainer("gpt2", args)}
    parts = Parts(trainers["gpst"].model, args.device)
    totals: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(args.repeat + 1):
        batch = batch_of(args, number)
        for name, trainer in trainers.items():
            parts.active = name == "gpst"
            totals[name].append(trainer.step(batch))
    ratios = [a / b for a, b in zip(totals["gpst"], totals["gpt2"], strict=True)][1:]
    report = {
        "benchmark": "step",
        **{name: getattr(args, name) for name in ("config", "tokens", "context_tokens", "threads")},
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "bf16": args.bf16,
        "checkpointing": args.checkpointing,
        "schedule": args.schedule or "of the config",
        "arithmetic_ratio": round(arithmetic_ratio(args), 3),
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "gpst_tokens_per_s": round(args.tokens / statistics.median(totals["gpst"][1:]), 1),
        "gpt2_tokens_per_s": round(args.tokens / statistics.median(totals["gpt2"][1:]), 1),
        "hardware": describe(),
    }
    for name, trainer in trainers.items():
        for part, seconds in trainer.laps.items():
            print(f"{name:5} {part:18} {statistics.median(seconds[1:]):8.3f} s")
    for part, seconds in parts.seconds.items():
        print(f"      {part:18} {seconds / (args.repeat + 1):8.3f} s a step")
    for which, number in sorted(parts.levels):
        pairs, seconds = parts.levels[which, number]
        us = seconds / max(pairs, 1) * 1e6
        print(
            f"      {which} level {number + 1:3} {pairs:9.0f} pairs {us:9.1f} us a pair (forward)"
        )
    if not args.no_memory:
        memory = {name: peak_gib(name, args) for name in MODELS}
        report["peak_gib"] = {name: round(gib, 2) for name, gib in memory.items()}
        report["memory_ratio"] = round(memory["gpst"] / memory["gpt2"], 3)
        report["memory_ratio_recomputed"] = round(memory["gpst_recomputed"] / memory["gpt2"], 3)
    print(
        f"GPST / GPT-2: {report['ratio_median']} (from {min(ratios):.3f} to {max(ratios):.3f});"
        f" arithmetic alone: {report['arithmetic_ratio']}"
    )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
