"""A monitor to write with, and its files read back with TensorBoard's own reader."""

from __future__ import annotations

import io

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpst.tree import Tree
from pipeline.monitor.metrics_file import read_metrics
from pipeline.monitor.monitor import Monitor
from pipeline.monitor.samples import Samples, SentenceTree


def monitor(run_dir, **arguments):
    arguments = {"num_steps": 40, "stream": io.StringIO()} | arguments
    return Monitor(run_dir, **arguments)


def log(watcher, steps, loss=1.0):
    for step in steps:
        watcher.log_step(step, tokens=100 * step, samples=4 * step, values={"loss": loss})


def steps_of(run_dir):
    return [line["step"] for line in read_metrics(run_dir / "metrics.jsonl")]


def events(run_dir, stream):
    accumulator = EventAccumulator(str(run_dir / "tensorboard" / stream))
    return accumulator.Reload()


def scalars(run_dir, stream, tag):
    return [(e.step, pytest.approx(e.value)) for e in events(run_dir, stream).Scalars(tag)]


def samples(*spans, continuations=()):
    """Samples of one sentence, "a *b* c d", with the given splits."""
    tree = Tree.from_splits(4, dict(spans))
    return Samples([SentenceTree(["a", "*b*", "c", "d"], tree)], list(continuations))


LEFT = samples(((0, 3), 2), ((0, 2), 1), ((0, 1), 0), continuations=["and\n  so on"])
MIXED = samples(((0, 3), 2), ((0, 2), 0), ((1, 2), 1), continuations=["or not"])


def log_samples(watcher, step, found):
    watcher.log_samples(step, tokens=100 * step, samples=found, prompts=["Once"])
