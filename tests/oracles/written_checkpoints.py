"""Checkpoints of two small files, and what a folder of them holds."""

from __future__ import annotations

from dataclasses import replace

from pipeline.checkpoint.files import publish, step_name
from pipeline.checkpoint.trainer_state import TrainerState


def at(state: TrainerState, step: int) -> TrainerState:
    return replace(state, step=step, samples=8 * step, tokens=100 * step)


def write(folder, state, step):
    """Publishes a checkpoint of two files of 1,000 bytes."""
    staged = folder / f".saving-{step}"
    staged.mkdir(parents=True)
    for name in ("a.pt", "b.pt"):
        (staged / name).write_bytes(bytes([step % 256]) * 1000)
    final = folder / step_name(step)
    publish(staged, final, at(state, step))
    return final


def names(folder):
    return sorted(path.name for path in folder.iterdir())
