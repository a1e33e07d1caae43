"""How much longer is a training step of GPST than one of GPT-2 on the same tokens?

    python benchmarks/bench_step.py --config configs/model/gpst_small.yaml --tokens 2048 --repeat 5

Both models take the same contexts of whole sentences through forward, backward, clipping and AdamW,
in turns within one run; the ratio is taken pair by pair. The GPT-2 has the generator's width and as
many layers as the generator's type and token layers together (the paper's sizes). Prints a table
and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import yaml

from gpst.batch import ContextBatch
from gpst.config import GPSTConfig, GPT2Config, config_from_dict
from gpst.losses import total_loss
from gpst.model import GPST, build_model


def sentence_lengths(rng: np.random.Generator, tokens: int) -> list[int]:
    """Lengths like English prose in word pieces (mean 24, long tail), `tokens` in all."""
    lengths: list[int] = []
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, int(np.clip(rng.lognormal(2.98, 0.65), 1, 256))))
    return lengths


def make_batch(config: GPSTConfig, tokens: int, context_tokens: int, seed: int) -> ContextBatch:
    rng = np.random.default_rng(seed)
    contexts = []
    for start in range(0, tokens, context_tokens):
        lengths = sentence_lengths(rng, min(context_tokens, tokens - start))
        contexts.append([rng.integers(0, config.vocab_size, n).tolist() for n in lengths])
    return ContextBatch.from_sentences(contexts)


def partner(config: GPSTConfig) -> GPT2Config:
    return GPT2Config(
        vocab_size=config.vocab_size,
        bos_token_id=config.bos_token_id,
        max_context_tokens=config.max_context_tokens,
        hidden_dim=config.hidden_dim,
        num_heads=config.num_heads,
        ffn_dim=config.ffn_dim,
        num_layers=config.num_type_layers + config.num_token_layers,
        dropout=config.dropout,
    )


class Trainer:
    """Forward, backward, clipping and AdamW of one model."""

    def __init__(self, model: torch.nn.Module, device: str, bf16: bool):
        self.model = model.to(device).train()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
        self.device, self.bf16 = device, bf16

    def step(self, batch: ContextBatch, times: dict[str, list[float]]) -> None:
        clock = Clock(self.device)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.bf16):
            loss = total_loss(self.model(batch, noise=1.0).losses, batch.counts)
        times["forward"].append(clock.lap())
        loss.backward()
        times["backward"].append(clock.lap())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        times["optimizer"].append(clock.lap())


class Clock:
    def __init__(self, device: str):
        self.device = device
        self.last = self.now()

    def now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def lap(self) -> float:
        now = self.now()
        passed, self.last = now - self.last, now
        return passed


def time_parts(model: GPST, device: str) -> dict[str, list[float]]:
    """Hooks that add up the forward time of each part of GPST (with their own synchronisation)."""
    from gpst import model as parts

    times: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, function: Callable) -> Callable:
        def wrapper(*args, **kwargs):
            clock = Clock(device)
            result = function(*args, **kwargs)
            times[name].append(clock.lap())
            return result

        return wrapper

    for name in ("inside", "outside", "decode", "build_plan", "split_loss", "vocabulary_loss"):
        setattr(parts, name, timed(name, getattr(parts, name)))
    for name in ("parser", "generator"):
        module = getattr(model, name)
        module.forward = timed(name, module.forward)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/model/gpst_small.yaml")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--context-tokens", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true", help="recompute the composition")
    parser.add_argument("--schedule", choices=["score", "height"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    values = yaml.safe_load(Path(args.config).read_text())
    values |= {"vocab_size": args.vocab_size, "bos_token_id": 0}
    if args.schedule:
        values["composition"]["schedule"] = args.schedule
    config = config_from_dict(values)
    assert isinstance(config, GPSTConfig), "--config must be of kind gpst"
    torch.manual_seed(0)
    models = {"gpst": build_model(config), "gpt2": build_model(partner(config))}
    if args.checkpointing:
        models["gpst"].checkpointing = {"composition"}  # type: ignore[assignment]
    trainers = {name: Trainer(m, args.device, args.bf16) for name, m in models.items()}
    totals: dict[str, list[float]] = {name: [] for name in trainers}
    laps: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in trainers}
    parts = time_parts(trainers["gpst"].model, args.device)  # type: ignore[arg-type]
    for number in range(args.repeat + 1):
        batch = make_batch(config, args.tokens, args.context_tokens, number).to(args.device)
        for name, trainer in trainers.items():
            clock = Clock(args.device)
            trainer.step(batch, laps[name])
            totals[name].append(clock.lap())
    ratios = [a / b for a, b in zip(totals["gpst"], totals["gpt2"], strict=True)][1:]
    report = {
        "benchmark": "step",
        "config": args.config,
        "tokens": args.tokens,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.processor(),
        "threads": args.threads,
        "torch": torch.__version__,
        "bf16": args.bf16,
        "checkpointing": args.checkpointing,
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "gpst_tokens_per_s": round(args.tokens / statistics.median(totals["gpst"][1:]), 1),
        "gpt2_tokens_per_s": round(args.tokens / statistics.median(totals["gpt2"][1:]), 1),
        "max_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    for name in trainers:
        for part, values_s in laps[name].items():
            print(f"{name:5} {part:12} {statistics.median(values_s[1:]):8.3f} s")
    steps = args.repeat + 1
    for part, values_s in parts.items():
        print(f"      {part:16} {sum(values_s) / steps:8.3f} s a step (forward)")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
