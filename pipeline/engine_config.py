"""The DeepSpeed config, derived from the run's: one source of truth.

`engine.deepspeed` adds entries to it; unknown ones and contradictions are refused.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch

from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.resolve import BatchPlan
from pipeline.strict import unknown_field

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


def deepspeed_config(config: RunConfig, plan: BatchPlan) -> dict[str, Any]:
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
        # In stage 0 Engine clips: DeepSpeed's way fails on the step that is to be skipped.
        "gradient_clipping": config.train.clip_norm if engine.zero_stage else 0.0,
        "zero_optimization": zero,
    }
    if engine.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
        derived["zero_force_ds_cpu_optimizer"] = False
    if engine.precision == "fp16":
        # A loss scale that falls at each overflow: fewer skipped steps than with its patience.
        derived["fp16"] = {"enabled": True, "hysteresis": 1}
    if engine.precision == "bf16":
        derived["bf16"] = {"enabled": True}
    if engine.precision != "fp32":
        # Sums over micro-steps and ranks in bf16 would lose small gradients.
        derived["data_types"] = {"grad_accum_dtype": "fp32"}
        derived["communication_data_type"] = "fp32"
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
