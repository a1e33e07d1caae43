"""Shares of zeros of what goes through the layers of a model."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


def zeros(x: Tensor) -> float:
    return (x == 0).double().mean().item()


def weights_on_vectors(packed: Tensor, mixed: Tensor, num_heads: int) -> Tensor:
    """(2 vectors, ...) the weights by which the values were mixed."""
    value = packed.unflatten(-1, (3, num_heads, -1))[:, :, 2].double()
    basis = torch.stack((value[0], value[1]), -1).expand(2, -1, -1, -1, -1)
    mixed = mixed.unflatten(-1, (num_heads, -1)).double().unsqueeze(-1)
    return torch.linalg.lstsq(basis, mixed).solution.squeeze(-1).movedim(-1, 0)


class Counted:
    """Shares of zeros of what goes through the places of a pair model."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, place: str, x: Tensor) -> None:
        self.seen[place].append(x.detach().clone().flatten())

    def add_weights(self, packed: Tensor, mixed: Tensor, num_heads: int) -> None:
        on_vectors = weights_on_vectors(packed, mixed, num_heads)
        on_vectors = torch.where(on_vectors.abs() < 1e-3, 0.0, on_vectors)
        self.add("weights on vector 0", on_vectors[0])
        self.add("weights on vector 1", on_vectors[1])
        self.add("weights on both", on_vectors.abs().sum(0))

    @property
    def shares(self) -> dict[str, float]:
        return {place: zeros(torch.cat(all_of)) for place, all_of in self.seen.items()}
