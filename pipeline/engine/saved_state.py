"""What DeepSpeed wrote into a checkpoint, by parameter: the same for every ZeRO stage and number of
ranks, so that any of them can follow any other.

Every stage lays the fp32 weights and Adam's two moments of a parameter out in its own way: whole
(0), as slices of each rank's flat buffers (1, 2; a parameter may lie on several ranks), or as equal
parts, padded (3). The files are mapped, so that a rank reads the slices that it needs.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import CheckpointError

WEIGHT = "fp32"
MOMENTS = ("exp_avg", "exp_avg_sq")
NAMES_KEY = "optimizer_names"
"""Where a stage-0 checkpoint has the names of the optimizer's parameters, in its order."""


@dataclass(frozen=True)
class _Piece:
    """Elements first .. first+numel-1 of a parameter, at `offset` of flat tensors."""

    first: int
    numel: int
    offset: int
    tensors: dict[str, Tensor]


class SavedState:
    """The weights and moments in a checkpoint, which must have been verified.

    Args:
        checkpoint: its folder.

    Raises:
        CheckpointError: the files are not laid out as the installed DeepSpeed does it.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._pieces: dict[str, list[_Piece]] = {}
        self.shapes: dict[str, torch.Size] = {}
        """Of each parameter, by its name in DeepSpeed's files; tied ones once."""
        self.tied: dict[str, str] = {}
        """Name of a tied parameter -> name of the one it shares its values with."""
        self.adam_step = 0.0
        """Updates that Adam made."""
        self.loss_scaler: Any = None
        """DeepSpeed's, under fp16."""
        try:
            self._read(checkpoint)
        except (KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
            reason = " ".join(f"{type(error).__name__} {error}".split())
            raise CheckpointError(
                f"checkpoint {checkpoint}: its files are not as this DeepSpeed writes them "
                f"({reason}); read them with the version that wrote them (state.json names it)"
            ) from error

    def _read(self, checkpoint: Path) -> None:
        model = _load(next(iter(sorted(checkpoint.glob("*model_states.pt"), key=_rank))))
        shards = [_load(path) for path in sorted(checkpoint.glob("*_optim_states.pt"), key=_rank)]
        if not shards:
            self._read_plain(model)
            return
        groups = model["param_shapes"]
        self.shapes = {name: shape for group in groups for name, shape in group.items()}
        self.tied = dict(model["shared_params"] or {})
        for rank, shard in enumerate(shards):
            state = shard["optimizer_state_dict"]
            self.loss_scaler = state.get("loss_scaler")
            if "fp32_flat_groups" in state:
                self._read_parts(state, rank, len(shards))
            else:
                self._read_slices(state)

    def _read_plain(self, model: dict[str, Any]) -> None:
        """Stage 0: whole parameters, moments by their number in the optimizer."""
        module, optimizer = model["module"], model["optimizer"]
        for number, name in enumerate(model[NAMES_KEY]):
            state = optimizer["state"][number]
            self.adam_step = float(state["step"])
            tensors = {WEIGHT: module[name], **{key: state[key] for key in MOMENTS}}
            flat = {key: tensor.reshape(-1) for key, tensor in tensors.items()}
            self.shapes[name] = module[name].shape
            self._pieces[name] = [_Piece(0, module[name].numel(), 0, flat)]
        self.tied = _ties(module, self.shapes)

    def _read_slices(self, state: dict[str, Any]) -> None:
        """Stages 1 and 2: a rank's flat buffers, one a group of the optimizer."""
        flats, moments = state["single_partition_of_fp32_groups"], state["base_optimizer_state"]
        for group, (flat, mapping) in enumerate(
            zip(flats, state["param_slice_mappings"], strict=True)
        ):
            tensors = self._with_moments(flat, moments["state"][group])
            for name, address in mapping.items():
                self._add(name, address.numel, address.start, tensors)

    def _read_parts(self, state: dict[str, Any], rank: int, num_ranks: int) -> None:
        """Stage 3: this rank's equal part of every parameter, in the order of `param_shapes`."""
        flats, moments = state["fp32_flat_groups"], state["optimizer_state_dict"]["state"]
        group, offset = 0, 0
        tensors = self._with_moments(flats[0], moments[0])
        for name, shape in self.shapes.items():
            part = ceil(shape.numel() / num_ranks)
            if offset + part > flats[group].numel():
                group, offset = group + 1, 0
                tensors = self._with_moments(flats[group], moments[group])
            numel = min(part, shape.numel() - rank * part)  # the rest is padding, or all of it
            self._add(name, numel, offset, tensors)
            offset += part

    def _with_moments(self, flat: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        self.adam_step = float(state["step"])
        return {WEIGHT: flat, **{key: state[key] for key in MOMENTS}}

    def _add(self, name: str, numel: int, offset: int, tensors: dict[str, Tensor]) -> None:
        pieces = self._pieces.setdefault(name, [])
        first = pieces[-1].first + pieces[-1].numel if pieces else 0
        pieces.append(_Piece(first, numel, offset, tensors))

    def part(self, name: str, kind: str, first: int, numel: int) -> Tensor:
        """(numel,) elements of a parameter's values, fp32; zeros beyond its end (padding).

        Args:
            kind: WEIGHT or one of MOMENTS.
            first: index of the first one in the flattened parameter.
        """
        out = torch.zeros(numel)
        for piece in self._pieces[name]:
            start, end = max(first, piece.first), min(first + numel, piece.first + piece.numel)
            if start < end:
                source = piece.tensors[kind][piece.offset + start - piece.first :][: end - start]
                out[start - first : end - first] = source
        return out

    def whole(self, name: str, kind: str = WEIGHT) -> Tensor:
        """A parameter's values in its own shape, fp32."""
        shape = self.shapes[name]
        return self.part(name, kind, 0, shape.numel()).view(shape)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, fp32 values) of every parameter; tied ones share their storage."""
        weights = {name: self.whole(name) for name in self.shapes}
        yield from weights.items()
        yield from ((name, weights[source]) for name, source in self.tied.items())


def _ties(module: dict[str, Tensor], names: dict[str, torch.Size]) -> dict[str, str]:
    """Entries of a state dict that are views of a named parameter's storage."""
    owners = {module[name].data_ptr(): name for name in names if module[name].numel()}
    others = (name for name in module if name not in names)
    return {n: owners[module[n].data_ptr()] for n in others if module[n].data_ptr() in owners}


def _rank(file: Path) -> int:
    match = re.search(r"pp_rank_(\d+)_", file.name)
    return int(match[1]) if match else 0


def _load(file: Path) -> dict[str, Any]:
    return torch.load(file, map_location="cpu", mmap=True, weights_only=False)
