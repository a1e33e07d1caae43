"""What the runs of docs/reproduce.md cost: arithmetic, hours on 8 GPUs, disk.

    python benchmarks/reproduction_cost.py                       the tables of docs/reproduce.md
    python benchmarks/reproduction_cost.py --measure gpst_small  tokens/s of a model on this machine

Arithmetic a token is counted by pipeline/cost/flops.py on contexts of 1,024 tokens with sentences
of 24 and the chart of random scores. Hours follow from it, a peak and a share of the peak (MFU)
that is assumed, not measured: give your own with --mfu. One JSON line a row.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from hardware import describe

from gpst.batch import ContextBatch
from gpst.chart.layout import build_layout
from gpst.config import GPSTConfig, ModelConfig, config_from_dict
from gpst.model.build import build_model
from gpst.model.losses import total_loss
from gpst.model.statistics import layout_sizes
from pipeline.config.run import REPOSITORY
from pipeline.cost.flops import batch_flops

VOCABULARY = 50_257
SENTENCE, CONTEXT, PASS = 24, 1024, 256 * 1024

PRETRAINING = {"wikitext103": 19_074, "openwebtext": 57_221}
"""Steps of 256 x 1,024 tokens."""
FINETUNING = {
    # task: (examples, tokens an example with the end (an estimate), epochs, seeds)
    "SST-2": (67_349, 15, 20, 3),
    "CoLA": (8_551, 13, 20, 3),
    "MRPC": (3_668, 55, 20, 3),
    "QQP": (363_846, 32, 20, 3),
    "QNLI": (104_743, 52, 20, 3),
    "RTE": (2_490, 72, 20, 3),
    "MNLI": (392_702, 42, 20, 3),
    "XSum": (204_045, 470, 15, 1),
    "CNN/DailyMail": (287_113, 860, 15, 1),
    "Gigaword": (3_803_957, 55, 10, 1),
    "PTB words": (39_832, 24, 10, 1),
}


def model_config(name: str) -> ModelConfig:
    """A model of configs/model with the paper's vocabulary."""
    path = REPOSITORY / "configs" / "model" / f"{name}.yaml"
    values = yaml.safe_load(path.read_text())
    return config_from_dict({**values, "vocab_size": VOCABULARY, "bos_token_id": 0})


def make_batch(num_contexts: int, length: int) -> ContextBatch:
    """Contexts of `length` tokens in sentences of SENTENCE."""
    full, rest = divmod(length, SENTENCE)
    sentences = [SENTENCE] * full + ([rest] if rest else [])
    ids = torch.randint(VOCABULARY, (num_contexts * length,), generator=torch.manual_seed(0))
    ends = np.cumsum(sentences * num_contexts, dtype=np.int64)
    return ContextBatch(ids, ends, np.cumsum([len(sentences)] * num_contexts, dtype=np.int64))


def flops_per_token(config: ModelConfig) -> float:
    """Of a training step."""
    batch = make_batch(4, CONTEXT)
    sizes = {}
    if isinstance(config, GPSTConfig):
        own, scores = config.composition, np.random.default_rng(0).random(batch.num_tokens)
        layout = build_layout(
            scores.astype(np.float32), batch.sentence_ends, own.window, own.schedule
        )
        sizes = layout_sizes(layout)
    return batch_flops(config, batch, sizes).total / batch.num_tokens


def count_parameters(config: ModelConfig) -> int:
    """Each once; no memory is taken."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(config).parameters())


def estimates(names: list[str], gpus: int, peak_tflops: float, mfu: dict[str, float]) -> None:
    """Prints a row for each model and task."""
    for name in names:
        config = model_config(name)
        per_token, parameters = flops_per_token(config), count_parameters(config)
        rate = gpus * peak_tflops * 1e12 * mfu[config.kind] / per_token
        hours = {corpus: steps * PASS / rate / 3600 for corpus, steps in PRETRAINING.items()}
        for task, (examples, tokens, epochs, seeds) in FINETUNING.items():
            hours[task] = examples * tokens * epochs * seeds / rate / 3600
        row = {
            "model": name,
            "parameters": parameters,
            "gflop_per_token": round(per_token / 1e9, 3),
            "tokens_per_second": round(rate),
            "mfu_assumed": mfu[config.kind],
            "hours": {key: round(value, 2) for key, value in hours.items()},
            # bf16 weights, fp32 masters and two moments; see pipeline/train/preflight.py.
            "checkpoint_gib": round(parameters * 14 / 2**30, 2),
        }
        print(json.dumps(row))


def measure(name: str, num_contexts: int, length: int, steps: int) -> None:
    """Prints tokens and arithmetic a second of forward and backward passes on this machine."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = model_config(name)
    torch.manual_seed(0)
    model = build_model(config).to(device).train()
    batch = make_batch(num_contexts, length).to(device)
    seconds, flops = [], 0.0
    for _ in range(steps + 1):
        began = time.perf_counter()
        output = model(batch, noise=1.0)
        total_loss(output.losses, batch.counts).backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        flops = batch_flops(config, batch, output.sizes).total
        model.zero_grad(set_to_none=True)
    durations = sorted(seconds[1:])  # the first one compiles
    median = durations[len(durations) // 2]
    row = {
        "model": name,
        "tokens": batch.num_tokens,
        "tokens_per_second": round(batch.num_tokens / median, 1),
        "gflop_per_second": round(flops / median / 1e9, 1),
        "seconds": [round(value, 3) for value in seconds],
        "threads": torch.get_num_threads(),
        **describe(),
    }
    print(json.dumps(row))


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", default=sorted(p.stem for p in _models()))
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--peak-tflops", type=float, default=312.0, help="bf16 of an A100")
    parser.add_argument("--mfu-gpst", type=float, default=0.15)
    parser.add_argument("--mfu-gpt2", type=float, default=0.35)
    parser.add_argument("--measure", metavar="MODEL")
    parser.add_argument("--contexts", type=int, default=1)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.contexts, args.length, args.steps)
        return
    mfu = {"gpst": args.mfu_gpst, "gpt2": args.mfu_gpt2}
    estimates(args.models, args.gpus, args.peak_tflops, mfu)


def _models() -> list[Path]:
    return [p for p in (REPOSITORY / "configs" / "model").glob("*.yaml") if "tiny" not in p.stem]


if __name__ == "__main__":
    main()
