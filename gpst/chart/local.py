"""The differentiable part of one level, kept or recomputed, and its gradients by route.

The passes over the chart are autograd Functions that go through the levels themselves. What a level
does to its edges (a module applied to gathered rows) is a small graph of its own: either kept from
the forward pass, or built again in the backward pass with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

EdgeFunction = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Ambience:
    """What else a forward computation depends on: random states and autocast."""

    device: torch.device
    cpu_state: Tensor
    device_state: Tensor | None
    autocast: bool
    autocast_dtype: torch.dtype

    @classmethod
    def now(cls, device: torch.device) -> _Ambience:
        on_gpu = device.type == "cuda"
        return cls(
            device,
            torch.get_rng_state(),
            torch.cuda.get_rng_state(device) if on_gpu else None,
            torch.is_autocast_enabled(device.type),
            torch.get_autocast_dtype(device.type),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        devices = [self.device] if self.device_state is not None else []
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self.cpu_state)
            if self.device_state is not None:
                torch.cuda.set_rng_state(self.device_state, self.device)
            with torch.autocast(self.device.type, dtype=self.autocast_dtype, enabled=self.autocast):
                yield


def _with_graph(
    function: EdgeFunction, inputs: Sequence[Tensor]
) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        return leaves, function(*leaves)


class LevelGraph:
    """The graph of (vectors, scores) = function(*inputs) on the edges of one level."""

    def __init__(self, function: EdgeFunction, device: torch.device, recompute: bool):
        self._function = function
        self._ambience = _Ambience.now(device) if recompute else None
        self._kept: tuple[list[Tensor], tuple[Tensor, Tensor]] | None = None

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The values, without gradient; the graph is kept unless it is to be recomputed."""
        if self._ambience is not None:
            return self._function(*inputs)
        self._kept = _with_graph(self._function, inputs)
        vectors, scores = self._kept[1]
        return vectors.detach(), scores.detach()

    def rebuild(
        self, gather: Callable[[], Sequence[Tensor]]
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """(inputs, vectors, scores) with their graph; `gather` gives the inputs once more."""
        if self._kept is not None:
            inputs, (vectors, scores) = self._kept
            self._kept = None
            return inputs, vectors, scores
        assert self._ambience is not None, "the graph of a level is used once"
        with self._ambience.restored():
            inputs, (vectors, scores) = _with_graph(self._function, gather())
        return inputs, vectors, scores


def gradients(
    outputs: tuple[Tensor, Tensor],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    into_vectors: Tensor,
    into_scores: Tensor,
    second_route: Tensor | None = None,
) -> tuple[list[Tensor | None], list[Tensor], list[Tensor] | None]:
    """Gradients of one level, by parameter, by input of the first route and of the second.

    Both routes have the same value, so the parameters' gradient is that of the sum of what comes
    into the vectors; the inputs' gradients are kept apart (design section 4).

    Args:
        into_vectors, into_scores: what flows in from the first route.
        second_route: what flows into the vectors from the second route, if there is one.
    """
    vectors, scores = outputs
    total = into_vectors if second_route is None else into_vectors + second_route
    total, into_scores = total.to(vectors.dtype), into_scores.to(scores.dtype)
    wanted = [*inputs, *parameters]
    both = torch.autograd.grad(
        (vectors, scores),
        wanted,
        (total, into_scores),
        retain_graph=second_route is not None,
        allow_unused=True,
    )
    to_parameters: list[Tensor | None] = list(both[len(inputs) :])
    to_inputs = [
        torch.zeros_like(x) if g is None else g
        for x, g in zip(inputs, both[: len(inputs)], strict=True)
    ]
    if second_route is None:
        return to_parameters, to_inputs, None
    second = torch.autograd.grad((vectors,), inputs, (second_route.to(vectors.dtype),))
    first = [g - s for g, s in zip(to_inputs, second, strict=True)]
    return to_parameters, first, list(second)


def add_up(total: list[Tensor | None], part: Sequence[Tensor | None]) -> None:
    """Add the parameters' gradients of one level to those of the levels before, in place."""
    for i, gradient in enumerate(part):
        if gradient is None:
            continue
        held = total[i]
        total[i] = gradient.clone() if held is None else held.add_(gradient)


def filled(total: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Zeros for the parameters that no level used: each takes part on every rank, every step."""
    return [torch.zeros_like(p) if g is None else g for g, p in zip(total, parameters, strict=True)]
