"""Checkpoint files as DeepSpeed lays them out in each ZeRO stage, written by hand.

Values are such that every element of every parameter, in weights and moments, is another number.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from pipeline.engine.saved_state import MOMENTS, WEIGHT, SavedState

SHAPES = {"a": torch.Size((5,)), "b": torch.Size((1,)), "c": torch.Size((2, 3))}
KINDS = (WEIGHT, *MOMENTS)
STEP = 7.0
SCALER = {"kind": "a loss scaler"}


def values(name: str, kind: str) -> torch.Tensor:
    """Of a parameter: 100 apart by parameter, 1000 by kind."""
    first = 100 * list(SHAPES).index(name) + 1000 * KINDS.index(kind) + 1
    return torch.arange(first, first + SHAPES[name].numel(), dtype=torch.float32)


def flat_of(pieces: list[tuple[str, int, int]], kind: str, padding: int = 0) -> torch.Tensor:
    """Elements first .. first+numel-1 of parameters one after another, then padding."""
    parts = [values(name, kind)[first : first + numel] for name, first, numel in pieces]
    return torch.cat([*parts, torch.full((padding,), -1.0)])


def moments_of(pieces: list[tuple[str, int, int]], padding: int = 0) -> dict[str, torch.Tensor]:
    moments = {kind: flat_of(pieces, kind, padding) for kind in MOMENTS}
    return {"step": torch.tensor(STEP), **moments}


def write_stage_0(folder: Path) -> None:
    module = {name: values(name, WEIGHT).view(shape) for name, shape in SHAPES.items()}
    state = [
        {"step": torch.tensor(STEP), **{k: values(n, k).view(SHAPES[n]) for k in MOMENTS}}
        for n in ("c", "a", "b")
    ]
    optimizer = {"state": dict(enumerate(state))}
    everything = {
        "module": {**module, "tied": module["c"], "buffer": torch.zeros(2)},
        "optimizer": optimizer,
        "optimizer_names": ["c", "a", "b"],
    }
    torch.save(everything, folder / "mp_rank_00_model_states.pt")


def write_stage_2(folder: Path) -> None:
    """Two groups: a and b (6 elements, 3 a rank), c (6 elements and padding, 4 a rank)."""
    torch.save(
        {
            "param_shapes": [{"a": SHAPES["a"], "b": SHAPES["b"]}, {"c": SHAPES["c"]}],
            "shared_params": {"tied": "c"},
        },
        folder / "mp_rank_00_model_states.pt",
    )
    ranks = [
        ([("a", 0, 3)], 0, [("c", 0, 4)], 0),
        ([("a", 3, 2), ("b", 0, 1)], 0, [("c", 4, 2)], 2),
    ]
    for rank, (first, pad, second, more) in enumerate(ranks):
        mappings = []
        for pieces in (first, second):
            start, mapping = 0, {}
            for name, _, numel in pieces:
                mapping[name] = SimpleNamespace(start=start, numel=numel)
                start += numel
            mappings.append(mapping)
        state = {
            "loss_scaler": SCALER,
            "single_partition_of_fp32_groups": [
                flat_of(first, WEIGHT, pad),
                flat_of(second, WEIGHT, more),
            ],
            "param_slice_mappings": mappings,
            "base_optimizer_state": {
                "state": {0: moments_of(first, pad), 1: moments_of(second, more)}
            },
        }
        torch.save(
            {"optimizer_state_dict": state},
            folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )


def write_stage_3(folder: Path) -> None:
    """Parts of ceil(numel / 2), padded: a is 3 + 2, b is 1 + 0, c is 3 + 3; c has its own group."""
    torch.save(
        {"param_shapes": [dict(SHAPES)], "shared_params": None},
        folder / "zero_pp_rank_0_mp_rank_00_model_states.pt",
    )
    ranks = [([("a", 0, 3), ("b", 0, 1)], 0, [("c", 0, 3)]), ([("a", 3, 2)], 2, [("c", 3, 3)])]
    for rank, (first, padding, second) in enumerate(ranks):
        state = {
            "fp32_flat_groups": [flat_of(first, WEIGHT, padding), flat_of(second, WEIGHT)],
            "optimizer_state_dict": {
                "state": {0: moments_of(first, padding), 1: moments_of(second)}
            },
        }
        torch.save(
            {"optimizer_state_dict": state},
            folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )


WRITERS = {0: write_stage_0, 2: write_stage_2, 3: write_stage_3}


def saved_in(folder: Path, stage: int) -> SavedState:
    """What is read of a checkpoint of the stage."""
    WRITERS[stage](folder)
    return SavedState(folder)
