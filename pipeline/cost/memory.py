"""The memory of a run, by rank and ZeRO stage, and of its checkpoints on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
from torch import nn

from gpst.batch import ContextBatch
from gpst.config import ModelConfig
from gpst.layers.transformer import CausalBlock
from gpst.model.build import build_model
from gpst.model.modes import skip_init
from pipeline.config.batch_shape import BatchShape
from pipeline.config.deepspeed import deepspeed_config
from pipeline.config.run import ResolvedRun
from pipeline.cost.activations import BYTES, activation_bytes
from pipeline.quantities import GIB

STAGES = (0, 1, 2, 3)
_BUCKET_NUMBERS = 500_000_000
"""DeepSpeed's default reduce_bucket_size: the numbers in a buffer that gradients are sent in."""
RESERVED = 0.08
"""Share of a device's memory that is not ours: its driver, libraries, fragmentation."""


@dataclass(frozen=True)
class ModelSize:
    """Parameters of a model, each counted once."""

    parameters: int
    in_blocks: int
    """Those of Transformer blocks, which ZeRO 3 splits."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes that a rank takes on its device when the forward pass ends."""

    weights: int
    gradients: int
    optimizer: int
    """Moments and fp32 master weights."""
    buckets: int
    """Buffers that gradients are sent in."""
    activations: int
    """Of a micro-batch, with the vocabulary heads' workspace."""
    host: int = 0
    """Of the optimizer in the host's memory (engine.offload_optimizer), not in the total."""

    @property
    def states(self) -> int:
        """All but activations."""
        return self.weights + self.gradients + self.optimizer + self.buckets

    @property
    def total(self) -> int:
        """On the device."""
        return self.states + self.activations


def model_size(config: ModelConfig) -> ModelSize:
    """Counts a model's parameters, in next to no memory."""
    with torch.device("cpu" if config.kind == "gpst" else "meta"), skip_init():
        model = build_model(config)
    blocks = {
        id(parameter): parameter.numel()
        for module in model.modules()
        if isinstance(module, _block_type(config))
        for parameter in module.parameters()
    }
    return ModelSize(sum(p.numel() for p in model.parameters()), sum(blocks.values()))


def _block_type(config: ModelConfig) -> type[nn.Module]:
    if config.kind == "gpst":
        return CausalBlock
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block  # takes seconds

    return GPT2Block


def state_memory(config: ResolvedRun, size: ModelSize, world_size: int, stage: int) -> RankMemory:
    """The memory of a rank besides activations, by ZeRO stage, as measured with DeepSpeed 0.19.

    Stage 1 keeps whole gradients (and in half precision sums of them in fp32); stages 2 and 3 keep
    a rank's share. Stage 3 splits the weights of Transformer blocks (pipeline/engine/zero3.py).
    """
    number, low = BYTES[config.engine.precision], config.engine.precision != "fp32"
    whole, share = size.parameters, size.parameters / world_size
    weights = number * whole
    if stage == 3:
        weights = number * (whole - size.in_blocks + size.in_blocks / world_size)
    gradients = {0: 4 * whole, 1: 6 * whole if low else 4 * whole + 4 * share}.get(stage, 4 * share)
    # ZeRO keeps a flat copy of its share of the weights, in fp32, beside the model's.
    optimizer = 8 * whole if stage == 0 else 12 * share
    buckets = 0 if stage == 0 or (stage == 1 and low) else number * _bucket_numbers(config)
    memory = RankMemory(int(weights), int(gradients), int(optimizer), buckets, 0)
    if config.engine.offload_optimizer and stage > 0:
        return replace(memory, optimizer=0, host=memory.optimizer)
    return memory


def _bucket_numbers(config: ResolvedRun) -> int:
    derived = deepspeed_config(config, BatchShape(1, 1, 1, 1))["zero_optimization"]
    return int(derived.get("reduce_bucket_size", _BUCKET_NUMBERS))


def rank_memory(
    config: ResolvedRun,
    size: ModelSize,
    world_size: int,
    stage: int,
    batch: ContextBatch,
    device_type: str,
) -> RankMemory:
    """All that a rank takes.

    Args:
        batch: a micro-batch; its sentences' lengths matter.
        device_type: cuda or cpu.
    """
    engine = config.engine
    activations = activation_bytes(
        config.model, batch, engine.precision, engine.checkpointing, device_type
    )
    return replace(state_memory(config, size, world_size, stage), activations=activations.total)


def checkpoint_bytes(config: ResolvedRun, num_parameters: int) -> int:
    """Size of a checkpoint: weights, and the states of the optimizer on all ranks."""
    weights = BYTES[config.engine.precision]
    return num_parameters * (weights + 8 + (4 if config.engine.zero_stage else 0))


@dataclass(frozen=True)
class Device:
    """What a rank runs on."""

    name: str
    type: str
    """cuda or cpu."""
    num_bytes: int
    """Of memory for this rank alone."""

    @property
    def usable(self) -> int:
        """What a run may use of it."""
        return int(self.num_bytes * (1 - RESERVED))


A100 = Device("A100 80 GB", "cuda", 80 * GIB)


def device_here(local_ranks: int) -> Device:
    """The device of a rank on this machine, whose memory the ranks share without GPUs."""
    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu":
        properties = torch.cuda.get_device_properties(0)
        return Device(properties.name, "cuda", properties.total_memory)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device("CPU", "cpu", total // max(1, local_ranks))
