"""The order of the data: the k-th sample of a run is a pure function of (seed, k).

Nothing is stored and nothing is drawn: the whole state of the data order is the integer k, so a run
resumes anywhere, and any number of ranks, any micro-batch and any accumulation see the same
global batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import ConfigError

NUM_ROUNDS = 12
MAX_PERIOD = 1 << 48

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = (1 << 64) - 1


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection of 64-bit words."""
    x = (x + _GOLDEN).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def mix(*words: int) -> int:
    """A 64-bit hash of integers; equal on every machine and in every process."""
    state = np.zeros(1, np.uint64)
    for word in words:
        state = _scramble(state ^ np.array([word & _MASK_64], np.uint64))
    return int(state[0])


def permute(seed: int, epoch: ArrayLike, position: ArrayLike, size: int) -> NDArray[np.int64]:
    """Image of `position` under the permutation of range(size) keyed by (seed, epoch).

    A balanced Feistel network over the smallest even number of bits for `size`; images
    outside range(size) are fed back until they fall inside (cycle walking), which keeps it a
    bijection. The domain is under four times `size`, so that takes under four turns on average.

    Args:
        seed: any integer.
        epoch, position: integers >= 0 that broadcast together; positions in range(size).
        size: number of elements, 1 <= size < 2**62.
    """
    epochs, positions = np.broadcast_arrays(
        np.asarray(epoch, np.uint64), np.asarray(position, np.uint64)
    )
    shape = positions.shape
    keys = _scramble(epochs.reshape(-1) ^ np.uint64(mix(seed)))
    values = positions.reshape(-1).copy()
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    outside = np.arange(values.size)
    while outside.size:
        values[outside] = _feistel(values[outside], keys[outside], half_bits)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64).reshape(shape)


def _feistel(
    values: NDArray[np.uint64], keys: NDArray[np.uint64], half_bits: int
) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for round_number in range(NUM_ROUNDS):
        round_keys = _scramble(keys + np.uint64(round_number))
        left, right = right, left ^ (_scramble(right ^ round_keys) & mask)
    return (left << shift) | right


def sample_index(seed: int, k: ArrayLike, size: int) -> NDArray[np.int64]:
    """Which of `size` contexts are the k-th samples of a run.

    Epoch k // size takes every context once, each epoch in another order.

    Args:
        seed: the run's seed.
        k: sample numbers >= 0, of any shape.
        size: number of contexts, >= 1.

    Returns:
        context numbers in range(size), shaped as `k`.
    """
    epoch, position = np.divmod(np.asarray(k, np.int64), size)
    return permute(seed, epoch, position, size)


@dataclass(frozen=True)
class Mixture:
    """Several datasets drawn in exact proportions, each through its own permutations.

    Weights are taken as the decimal numbers they are written as (0.1 is one tenth) and reduced to
    whole shares whose sum is the period. Every period has exactly its share of every dataset,
    in an order keyed by (seed, period).
    """

    sizes: tuple[int, ...]
    """Contexts of each dataset, >= 1."""
    shares: tuple[int, ...]
    """Samples of each dataset in a period, >= 1, without a common divisor."""

    @classmethod
    def from_weights(cls, sizes: Sequence[int], weights: Sequence[float]) -> "Mixture":
        """Raises ConfigError for a weight that is not positive or too fine to be met exactly."""
        fractions = []
        for weight in weights:
            if not 0 < weight < float("inf"):
                raise ConfigError(
                    f"data.datasets weight {weight!r}: allowed are finite numbers > 0"
                )
            fractions.append(Fraction(str(weight)))
        denominator = lcm(*(f.denominator for f in fractions))
        whole = [int(f * denominator) for f in fractions]
        divisor = gcd(*whole)
        shares = tuple(w // divisor for w in whole)
        if sum(shares) > MAX_PERIOD:
            raise ConfigError(
                f"data.datasets weights {list(weights)}: their proportions only repeat after "
                f"{sum(shares)} samples; round them to fewer digits"
            )
        return cls(tuple(sizes), shares)

    def sample(self, seed: int, k: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Dataset numbers and context numbers within them of the k-th samples, shaped as `k`."""
        k = np.asarray(k, np.int64)
        if len(self.sizes) == 1:
            return np.zeros_like(k), sample_index(seed, k, self.sizes[0])
        bounds = np.cumsum(self.shares)
        period, position = np.divmod(k, int(bounds[-1]))
        slot = permute(mix(seed, -1), period, position, int(bounds[-1]))
        dataset = np.searchsorted(bounds, slot, side="right").astype(np.int64)
        shares = np.asarray(self.shares, np.int64)
        # Slots of a dataset number its samples within the period: each is met exactly once.
        within = period * shares[dataset] + slot - (bounds - shares)[dataset]
        index = np.empty_like(k)
        for number, size in enumerate(self.sizes):
            chosen = dataset == number
            index[chosen] = sample_index(mix(seed, number), within[chosen], size)
        return dataset, index


def batch_samples(
    step: int,
    micro_step: int,
    *,
    rank: int,
    world_size: int,
    micro_batch: int,
    accumulation: int,
) -> NDArray[np.int64]:
    """Sample numbers k of one rank's micro-batch.

    Step `step` (from 0) of the run is the samples step*B .. step*B + B-1 with
    B = micro_batch * accumulation * world_size; each rank takes a contiguous part of them,
    and a micro-batch a contiguous part of that.

    Returns:
        (micro_batch,) sample numbers.
    """
    per_rank = micro_batch * accumulation
    first = step * per_rank * world_size + rank * per_rank + micro_step * micro_batch
    return np.arange(first, first + micro_batch, dtype=np.int64)


def step_samples(step: int, global_batch: int) -> NDArray[np.int64]:
    """Sample numbers k of all ranks' step `step` (from 0), shape (global_batch,)."""
    return np.arange(step * global_batch, (step + 1) * global_batch, dtype=np.int64)
