"""The forecast of a configuration, as tables and as one line of JSON."""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from typing import Any

import torch
from stepping import partner

from forecast.gpus import A100, GPU, GPUS, H100, seconds
from forecast.measuring import measured_ms
from forecast.step import Forecast, forecast
from forecast.text import Trees, batch_of, boundary_scores, real_contexts
from gpst.config import ConfigError, GPSTConfig, ModelConfig, config_from_dict
from pipeline.config import yaml_text
from pipeline.config.run import find_config


def read_model_config(path: str, vocab_size: int) -> ModelConfig:
    """The model in a YAML file of this path, or of this path in the repository.

    Raises:
        ConfigError: one line that names the file.
    """
    file = find_config(path)
    values = yaml_text.read_fields(file)
    if "run_dir" in values or "model" in values:
        raise ConfigError(
            f"config file {file}: describes a run, and a model is needed: take the one that its "
            f"`model` names, like configs/model/gpst_small.yaml"
        )
    try:
        return config_from_dict(values | {"vocab_size": vocab_size, "bos_token_id": 0})
    except ConfigError as error:
        raise ConfigError(f"config file {file}: {error}") from None


def forecasts(
    config: ModelConfig, contexts: int, trees: Trees, checkpointing: frozenset[str]
) -> tuple[Forecast, Forecast | None]:
    """The step of a model, and for GPST also GPT-2's, on the same contexts of real text."""
    if not isinstance(config, GPSTConfig) and "composition" in checkpointing:
        raise ConfigError("--recompute composition: a GPT-2 has no composition model")
    batch = batch_of(real_contexts(contexts))
    scores = boundary_scores(batch, trees)
    ours = forecast(config, batch, scores, checkpointing)
    if not isinstance(config, GPSTConfig):
        return ours, None
    return ours, forecast(partner(config), batch, scores, checkpointing & {"generator"})


def ratio(ours: Forecast, theirs: Forecast, gpu: GPU) -> float:
    """Of the times on a GPU, each in the middle of its range."""
    return sum(ours.seconds(gpu)) / sum(theirs.seconds(gpu))


def summary(ours: Forecast, theirs: Forecast | None) -> dict[str, Any]:
    """The numbers that are compared between versions; None where there is nothing beside it."""
    return {
        "kernels": ours.launches,
        "ratio_a100": round(ratio(ours, theirs, A100), 3) if theirs else None,
        "ratio_h100": round(ratio(ours, theirs, H100), 3) if theirs else None,
        "memory_ratio": round(ours.peak / theirs.peak, 3) if theirs else None,
        "kernels_gpt2": theirs.launches if theirs else None,
        "host_waits": len(ours.record.waits),
        "host_waits_gpt2": len(theirs.record.waits) if theirs else None,
        "peak_gib": round(ours.peak / 2**30, 2),
        "peak_gib_gpt2": round(theirs.peak / 2**30, 2) if theirs else None,
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


def top(found: Forecast, count: int) -> list[str]:
    """The lines of code that take longest on an A100."""
    launches: Counter[tuple[str, str]] = Counter()
    times: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event in found.record.events:
        key = event.place.line, event.name
        launches[key] += event.cost.launches
        times[key] += seconds(event.cost, A100)
    longest = sorted(times, key=lambda key: -times[key])[:count]
    return [f"  {launches[key]:7} {times[key] * 1e3:8.2f} ms  {' '.join(key)}" for key in longest]


def measure(config: ModelConfig, contexts: int, device: str) -> dict[str, Any]:
    """Milliseconds on a device that is here: of a model, and for GPST also of GPT-2."""
    rows, repeat = real_contexts(contexts), 5 if device == "cuda" else 1
    if device == "cpu":
        rows = [row[:2] for row in rows]
    name = torch.cuda.get_device_name() if device == "cuda" else "two sentences on the CPU"
    ours = measured_ms(config, rows, device, repeat)
    if not isinstance(config, GPSTConfig):
        print(f"measured  {name}: GPT-2 {ours:.2f} ms")
        return {"measured_ratio": None, "measured_ms": round(ours, 2)}
    theirs = measured_ms(partner(config), rows, device, repeat)
    print(f"measured  {name}: GPST {ours:.2f} ms, GPT-2 {theirs:.2f} ms, {ours / theirs:.3f}")
    return {"measured_ratio": round(ours / theirs, 3), "measured_ms": round(ours, 2)}


def report(config: ModelConfig, args: argparse.Namespace) -> None:
    """Prints tables, what the host waits for, and the line of JSON."""
    ours, theirs = forecasts(config, args.contexts, args.trees, frozenset(args.recompute))
    for name, found in (("GPST" if theirs else "GPT-2", ours), ("GPT-2", theirs)):
        if found:
            print("\n".join([*table(name, found), *top(found, args.top)]))
    for what in ("waits", "mixed", "pageable"):
        lines = Counter(event.place.line for event in getattr(ours.record, what))
        found = ", ".join(f"{line} ({count})" for line, count in lines.items())
        print(f"{what:9} {found or 'none'}")
    measured = measure(config, args.contexts, args.measure) if args.measure else {}
    head = {"benchmark": "gpu_forecast", "config": args.config, "contexts": args.contexts}
    head |= {"trees": args.trees, "recompute": args.recompute, "torch": torch.__version__}
    print(json.dumps(head | summary(ours, theirs) | measured))
