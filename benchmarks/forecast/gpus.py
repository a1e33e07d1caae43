"""What GPUs are known to do, and the time that a recorded kernel takes on them.

A kernel takes as long as the slowest of its arithmetic, its traffic with memory and with the
second-level cache, and its longest chain of steps that wait for each other; at least FLOOR; and GAP
passes between two kernels. The host needs between HOST_S[0] and HOST_S[1] for each launch; where it
is slower than the GPU, the step takes as long as the host does.

These are the constants, and where they are from. All are round numbers: a forecast compares two
programs on one machine; it is no measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOOR_S = 2.0e-6
"""Of a kernel that does nothing, from its start to its end: 1.5 to 2.5 us on both generations
(as profilers show for PyTorch's smallest fills)."""
GAP_S = 1.0e-6
"""Between two kernels of a stream: NVIDIA's "Getting Started with CUDA Graphs" (2019) measures
3.8 us a kernel of 2.9 us."""
HOST_S = (5e-6, 9e-6)
"""A launch from PyTorch with autograd in Python: 4 to 10 us in published profiles, by CPU."""
WAIT_S = 20e-6
"""Of a copy to the host, and the wake-up after it."""


@dataclass(frozen=True)
class GPU:
    """One kind of GPU."""

    name: str
    flops: float
    """Dense bf16 multiplications and additions per second, data sheet."""
    exact_flops: float
    """The same in fp32 outside the tensor cores, data sheet."""
    bytes: float
    """Of its memory per second, data sheet."""
    cache_bytes: float
    """Of the second-level cache per second, all multiprocessors (published microbenchmarks)."""
    processors: int
    """Streaming multiprocessors."""
    product_share: float
    """Of `flops` that cuBLAS reaches on large products (published: 0.7 to 0.85 and 0.6 to 0.75)."""
    attention_share: float
    """That FlashAttention 2 reaches (its paper: 0.6 to 0.7 on an A100, 0.35 to 0.4 on an H100)."""
    written_share: float
    """That products written in Triton reach on tiles of 64 to 128 rows (its tutorial reaches
    cuBLAS on an A100; halved here, for what lies between the products)."""
    clock: float
    """Of its multiprocessors when boosted, data sheet."""
    memory_share: float = 0.85
    """Of `bytes`, and of a multiprocessor's own 64 bytes a clock from the second-level cache
    (NVIDIA's white papers), that streaming kernels reach."""

    @property
    def stream(self) -> float:
        """Bytes per second from the cache into one multiprocessor."""
        return 64 * self.clock * self.memory_share


A100 = GPU("A100-80", 312e12, 19.5e12, 2.039e12, 4.5e12, 108, 0.72, 0.6, 0.4, 1.41e9)
H100 = GPU("H100", 989e12, 67e12, 3.35e12, 6.5e12, 132, 0.62, 0.37, 0.3, 1.98e9)
H200 = GPU("H200", 989e12, 67e12, 4.8e12, 6.5e12, 132, 0.62, 0.37, 0.3, 1.98e9)
GPUS = (A100, H100, H200)


@dataclass(frozen=True)
class Cost:
    """What one operation asks of a GPU."""

    launches: int = 1
    bytes: float = 0.0
    """To and from memory."""
    flops: float = 0.0
    kind: str = "plain"
    """Whose share of the peak it reaches: product, attention, written; plain: fp32 arithmetic."""
    cache_bytes: float = 0.0
    """Read again from the second-level cache by many programs."""
    chain_bytes: float = 0.0
    """That one multiprocessor reads, one after another: the longest program of the kernel."""
    chain_steps: int = 0
    """Accesses that wait for each other in its longest program."""
    fill: float = 1.0
    """Share of the multiprocessors that have work."""


CHAIN_STEP_S = 0.7e-6
"""A store, a barrier and the load of what was stored, through the second-level cache (its latency
is 200 to 270 cycles on an A100, published microbenchmarks)."""


def seconds(cost: Cost, gpu: GPU) -> float:
    """On the GPU, without its host."""
    if cost.launches == 0:
        return 0.0
    share = {
        "product": gpu.product_share,
        "attention": gpu.attention_share,
        "written": gpu.written_share,
    }.get(cost.kind)
    rate = gpu.exact_flops * 0.5 if share is None else gpu.flops * share
    chain = cost.chain_bytes / gpu.stream
    busy = max(
        cost.bytes / (gpu.bytes * gpu.memory_share),
        cost.cache_bytes / (gpu.cache_bytes * cost.fill),
        cost.flops / (rate * cost.fill),
        chain + cost.chain_steps * CHAIN_STEP_S,
    )
    return max(busy, cost.launches * FLOOR_S) + cost.launches * GAP_S


def filled(tiles: float, gpu_processors: int = 108) -> float:
    """Share of the multiprocessors that work on so many equal tiles, a round being a full one."""
    rounds = -(-tiles // gpu_processors)
    return min(1.0, tiles / (max(rounds, 1) * gpu_processors))
