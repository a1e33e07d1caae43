"""Dropout masks that a seed gives back: nothing but the seed has to be kept for a backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpst.jit.compiled import compiled

# Multipliers of integer hashes with little bias (a public search by C. Wellons; Weyl's sequence).
_WEYL, _FIRST, _SECOND = np.uint32(0x9E3779B9), np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_15, _16, _LOW = np.uint32(15), np.uint32(16), np.uint32(0xFFFF)


@compiled
def _random_bits(i, key, other_key):
    """32 bits that depend on the number i and two keys: a hash, which vectorises."""
    x = np.uint32((np.uint32(i) ^ key) * _WEYL)
    x = np.uint32((x ^ (x >> _16)) * _FIRST)
    x = np.uint32(((x ^ (x >> _15)) + other_key) * _SECOND)
    return np.uint32(x ^ (x >> _16))


@compiled
def _fill(mask, key, other_key, threshold, scale):
    half = len(mask) // 2
    for i in range(half):
        bits = _random_bits(i, key, other_key)
        mask[i] = scale if (bits & _LOW) >= threshold else 0
        mask[half + i] = scale if (bits >> _16) >= threshold else 0
    if len(mask) % 2:
        last = _random_bits(half, key, other_key) & _LOW
        mask[len(mask) - 1] = scale if last >= threshold else 0


def _keys(seed: int) -> tuple[np.uint32, np.uint32]:
    """Two keys that have nothing in common with those of the next seed."""
    x = seed * 0x9E3779B97F4A7C15 % 2**64
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93 % 2**64
    x ^= x >> 32
    return np.uint32(x % 2**32), np.uint32(x >> 32)


def hash_keys(seed: int) -> tuple[int, int]:
    """Two keys of 30 bits for the kernels on a GPU that draw their own masks."""
    key, other_key = _keys(seed)
    return int(key) >> 2, int(other_key) >> 2


def draw_seed() -> int:
    """A seed from PyTorch's own generator, with room for a counter to be added to it."""
    return int(torch.empty((), dtype=torch.int64).random_(2**62))


def keep_mask(
    rate: float, seed: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """0 where a value is dropped, with probability `rate` to within 2**-17; else 1 / (1 - rate).

    On a CPU a value takes 16 bits of a hash, and a twentieth of the time of `bernoulli_`.
    """
    if device.type != "cpu":
        generator = torch.Generator(device).manual_seed(seed)
        mask = torch.empty(shape, dtype=dtype, device=device)
        return mask.bernoulli_(1.0 - rate, generator=generator).mul_(1.0 / (1.0 - rate))
    exact = torch.promote_types(dtype, torch.float32)
    mask = torch.empty(shape, dtype=exact)
    threshold = round(rate * 2**16)
    flat = mask.view(-1).numpy()
    scale = flat.dtype.type(2**16 / (2**16 - threshold))
    _fill(flat, *_keys(seed), np.uint32(threshold), scale)
    return mask.to(dtype)


def keep_masks(
    rate: float,
    seed: int,
    shapes: Sequence[Sequence[int]],
    dtype: torch.dtype,
    device: torch.device,
) -> list[Tensor]:
    """Masks of several shapes, drawn at once."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = keep_mask(rate, seed, (sum(sizes),), dtype, device).split(sizes)
    return [part.view(*shape) for part, shape in zip(parts, shapes, strict=True)]
