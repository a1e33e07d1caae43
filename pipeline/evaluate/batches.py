"""Which texts share a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Positions, shortest first, in groups of at most `batch_tokens` once padded (at least one)."""
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: lengths[n]):
        if group and (len(group) + 1) * lengths[number] > batch_tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
