"""DeepSpeed behind the few verbs that training needs: forward, backward, update.

One source of truth: the DeepSpeed config is derived from the run's; `engine.deepspeed` adds to it
and may not contradict it. Only this file and checkpoint.py know DeepSpeed.
"""

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpst.batch import BatchCounts, ContextBatch
from gpst.losses import total_loss
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.optim import build_optimizer, set_rates
from pipeline.resolve import BatchPlan
from pipeline.strict import unknown_field
from pipeline.world import World

_OWN_FIELDS = {
    "train_batch_size": "train.global_batch_contexts",
    "train_micro_batch_size_per_gpu": "train.micro_batch_contexts_per_rank",
    "gradient_accumulation_steps": "train.global_batch_contexts",
    "gradient_clipping": "train.clip_norm",
    "zero_optimization.stage": "engine.zero_stage",
    "zero_optimization.offload_optimizer": "engine.offload_optimizer",
    "bf16": "engine.precision",
    "fp16": "engine.precision",
    "bfloat16": "engine.precision",
    "torch_autocast": "engine.precision",
    "optimizer": "optim",
    "scheduler": "optim",
    "tensorboard": "monitor",
    "wandb": "monitor",
    "csv_monitor": "monitor",
    "checkpoint.load_universal": "checkpoint.resume",
    "managed_gradient_accumulation": "train.global_batch_contexts",
}
"""Entries of a DeepSpeed config that follow from fields of ours."""


@dataclass(frozen=True)
class Update:
    """What an optimizer step did."""

    applied: bool
    """False when a loss or gradient was not finite: parameters and moments are as before."""
    gradient_norm: float
    """Global norm before clipping; inf when it is not finite."""


class Objective(nn.Module):
    """The model with its loss, as DeepSpeed needs it.

    DeepSpeed finds the start of backward by hooks on the tensors in the forward's output, and it
    looks for them in tuples, lists and dicts only: were the loss hidden in an output dataclass,
    gradients would be reduced at the wrong micro-steps, silently.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        batch: ContextBatch,
        counts: BatchCounts,
        scale: float,
        noise: float,
        temperature: float,
    ) -> tuple[Tensor, Any]:
        output = self.model(batch, noise=noise, temperature=temperature)
        loss = total_loss(output.losses, counts) * scale
        # An infinite loss can have finite gradients; NaN reaches all of them, on every rank.
        poison = torch.where(loss.detach().isfinite(), 1.0, math.nan)
        return loss * poison, output


class Engine:
    """A model in training on all ranks."""

    def __init__(self, raw: Any, optimizer: torch.optim.Optimizer, config: RunConfig) -> None:
        self.raw = raw
        """The DeepSpeedEngine."""
        self.config = config
        self._optimizer = optimizer

    @property
    def model(self) -> nn.Module:
        """The model itself, as gpst.model built it."""
        return self.raw.module.model

    def set_rates(self, rate: float, parser_rate: float) -> None:
        """Sets the learning rates of the next update."""
        set_rates(self._optimizer, self.config.optim, rate, parser_rate)

    def forward(
        self,
        batch: ContextBatch,
        counts: BatchCounts,
        scale: float,
        noise: float,
        temperature: float,
    ) -> tuple[Tensor, Any]:
        """(loss for `backward`, the model's output) of one micro-batch.

        Args:
            counts: of the whole global batch.
            scale: factor that undoes DeepSpeed's means over ranks and micro-steps.
        """
        return self.raw(batch, counts, scale, noise, temperature)

    def backward(self, loss: Tensor) -> Update | None:
        """Adds the gradient of a micro-step and, at the last one of a step, updates.

        Call it exactly once per micro-step: a second call would be reduced wrongly, silently.
        """
        self.raw.backward(loss)
        last = self.raw.is_gradient_accumulation_boundary()
        finite = self._drop_gradients_unless_finite() if last and self._is_plain else None
        self.raw.step()
        if not last:
            return None
        if finite is not None:
            norm = self._plain_norm
            return Update(finite, norm if finite else math.inf)
        return Update(self.raw.was_step_applied(), float(self.raw.get_global_grad_norm()))

    @property
    def _is_plain(self) -> bool:
        """Stage 0 steps torch's AdamW itself, which neither checks nor reports gradients."""
        return self.config.engine.zero_stage == 0

    def _drop_gradients_unless_finite(self) -> bool:
        grads = [p.grad for p in self.raw.module.parameters() if p.grad is not None]
        self._plain_norm = float(nn.utils.get_total_norm(grads))
        if math.isfinite(self._plain_norm):
            return True
        for parameter in self.raw.module.parameters():
            parameter.grad = None  # AdamW passes over parameters without a gradient
        return False

    def close(self) -> None:
        """Releases DeepSpeed's hooks and buffers."""
        self.raw.destroy()


def create_engine(
    model: nn.Module, config: RunConfig, plan: BatchPlan, world: World, universal: bool = False
) -> Engine:
    """The engine for a model, whose parameters become those of rank 0 everywhere.

    Args:
        universal: a universal checkpoint will be loaded.
    """
    deepspeed = _import_deepspeed(world.device)
    objective = Objective(model).to(world.device)
    optimizer = build_optimizer(model, config.optim, world.device)  # type: ignore[arg-type]
    raw, *_ = deepspeed.initialize(
        model=objective,
        optimizer=optimizer,
        config=deepspeed_config(config, plan, universal),
    )
    return Engine(raw, optimizer, config)


def _import_deepspeed(device: torch.device) -> Any:
    # DeepSpeed 0.19 calls names that torch 2.13 deprecates: not for our users to read.
    gone = r"`torch\.distributed\.\w+` is deprecated"
    warnings.filterwarnings("ignore", gone, category=FutureWarning)
    import deepspeed

    if device.type == "cpu":
        # Or it compiles a shared-memory op at the first start; a killed compile hangs all later.
        deepspeed.ops.__compatible_ops__ = {}  # type: ignore[attr-defined]
    return deepspeed


def deepspeed_config(config: RunConfig, plan: BatchPlan, universal: bool = False) -> dict[str, Any]:
    """The DeepSpeed config of a run.

    Raises:
        ConfigError: an entry of `engine.deepspeed` is unknown to DeepSpeed or contradicts a field.
    """
    engine = config.engine
    zero: dict[str, Any] = {"stage": engine.zero_stage}
    derived: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "gradient_clipping": config.train.clip_norm,
        "zero_optimization": zero,
    }
    if engine.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
        derived["zero_force_ds_cpu_optimizer"] = False
    if engine.precision == "bf16":
        derived["bf16"] = {"enabled": True}
        # Sums over micro-steps and ranks in bf16 would lose small gradients.
        derived["data_types"] = {"grad_accum_dtype": "fp32"}
        derived["communication_data_type"] = "fp32"
    if universal:
        derived["checkpoint"] = {"load_universal": True}
    return _merge(derived, engine.deepspeed, "")


def check_deepspeed_entries(config: RunConfig, plan: BatchPlan) -> None:
    """Refuses what is wrong in `engine.deepspeed` before any rank starts.

    Raises:
        ConfigError: names the entry.
    """
    if not config.engine.deepspeed:
        return
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    known = _known_entries()
    for name in config.engine.deepspeed:
        if name not in known and name not in _OWN_FIELDS:
            raise unknown_field(name, known, "engine.deepspeed.")
    entries = deepspeed_config(config, plan)
    from deepspeed.runtime.config import DeepSpeedConfig

    # Without ranks DeepSpeed takes their number as one, so the global batch is left to it.
    entries.pop("train_batch_size")
    try:
        DeepSpeedConfig(entries)
    except Exception as error:
        raise ConfigError(f"engine.deepspeed: {' '.join(str(error).split())}") from None


def _merge(derived: dict[str, Any], extra: Mapping[str, Any], owner: str) -> dict[str, Any]:
    merged = dict(derived)
    for key, value in extra.items():
        name, mine = owner + key, merged.get(key)
        if isinstance(mine, dict) and isinstance(value, Mapping):
            merged[key] = _merge(mine, value, name + ".")
        elif key in merged and mine != value:
            field = _OWN_FIELDS.get(name, "the fields of the config")
            raise ConfigError(
                f"engine.deepspeed.{name}: {value!r} contradicts {mine!r}, which follows from "
                f"{field}; leave it out and set {field}"
            )
        elif key not in merged and name in _OWN_FIELDS:
            raise ConfigError(
                f"engine.deepspeed.{name}: not allowed here; set {_OWN_FIELDS[name]} instead"
            )
        else:
            merged[key] = value
    return merged


class _Recorder(dict[str, Any]):
    """A config that remembers which entries were asked for."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:  # type: ignore[override]
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def keys(self) -> Any:
        return self

    def __copy__(self) -> "_Recorder":
        return self


def _known_entries() -> list[str]:
    """The top-level entries that the installed DeepSpeed reads.

    It accepts unknown ones silently and has no list of those it knows, so it is given a config
    that writes down what it is asked for.
    """
    from deepspeed.runtime.config import DeepSpeedConfig

    recorder = _Recorder({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1})
    DeepSpeedConfig(recorder)
    return sorted(recorder.asked - {"amp"})
