"""The DeepSpeed config, derived from the run's: one source of truth.

`engine.deepspeed` adds entries to it; unknown ones and contradictions are refused.
"""

import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from pydantic import ValidationError

from gpst.config_reader import require, shown, unknown_field
from pipeline.config.batch_shape import BatchShape
from pipeline.config.run import RunSettings
from pipeline.errors import ConfigError

_FIELD_OF = {
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
"""Entries of a DeepSpeed config -> the field of ours that they follow from."""


def deepspeed_config(config: RunSettings, batch_shape: BatchShape) -> dict[str, Any]:
    """The DeepSpeed config of a run.

    Raises:
        ConfigError: an entry of `engine.deepspeed` is unknown to DeepSpeed or contradicts a field.
    """
    engine = config.engine
    zero: dict[str, Any] = {"stage": engine.zero_stage}
    derived: dict[str, Any] = {
        "train_batch_size": batch_shape.global_batch,
        "train_micro_batch_size_per_gpu": batch_shape.micro_batch,
        "gradient_accumulation_steps": batch_shape.accumulation,
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


def check_deepspeed_entries(config: RunSettings, batch_shape: BatchShape) -> None:
    """Refuses what is wrong in `engine.deepspeed` before any rank starts.

    Raises:
        ConfigError: names the entry.
    """
    if not config.engine.deepspeed:
        return
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    known = _known_entries()
    for name, value in config.engine.deepspeed.items():
        if name not in known and name not in _FIELD_OF:
            raise ConfigError(unknown_field(name, sorted(known), "engine.deepspeed."))
        _check_entry(f"engine.deepspeed.{name}", value, known.get(name))
    entries = deepspeed_config(config, batch_shape)
    # Without ranks DeepSpeed takes their number as one, so the global batch is left to it.
    entries.pop("train_batch_size")
    reason = _refusal_of(entries)
    if reason is None:
        return
    for name, value in config.engine.deepspeed.items():
        if _refusal_of({other: entries[other] for other in entries if other != name}) is None:
            raise ConfigError(
                f"engine.deepspeed.{name}: {shown(value)} is not what DeepSpeed takes: {reason}"
            )
    raise ConfigError(f"engine.deepspeed: {reason}")


def _check_entry(name: str, value: Any, default: Any = None) -> None:
    """Refuses what DeepSpeed would take for something else, or stumble over when ranks start."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_entry(f"{name}.{key}", inner)
    elif value == "auto":
        raise ConfigError(
            f"{name}: 'auto' is filled in by Hugging Face's Trainer alone; give a value, or leave "
            "it out"
        )
    elif isinstance(default, bool):
        require(isinstance(value, bool), name, value, "true or false")
    elif isinstance(default, (int, float)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        require(is_number, name, value, "a number")


def _refusal_of(entries: dict[str, Any]) -> str | None:
    """Why DeepSpeed refuses a config, in one line; None when it takes it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig(deepcopy(entries))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except Exception as error:
        return " ".join(str(error).split())
    return None


def _merge(derived: dict[str, Any], extra: Mapping[str, Any], owner: str) -> dict[str, Any]:
    merged = dict(derived)
    for key, value in extra.items():
        name, ours = owner + key, merged.get(key)
        if isinstance(ours, dict) and isinstance(value, Mapping):
            merged[key] = _merge(ours, value, name + ".")
        elif key in merged and ours != value:
            field = _FIELD_OF.get(name, "the fields of the config")
            raise ConfigError(
                f"engine.deepspeed.{name}: {value!r} contradicts {ours!r}, which follows from "
                f"{field}; leave it out and set {field}"
            )
        elif key not in merged and name in _FIELD_OF:
            raise ConfigError(
                f"engine.deepspeed.{name}: not allowed here; set {_FIELD_OF[name]} instead"
            )
        else:
            merged[key] = value
    return merged


class _Recorder(dict[str, Any]):
    """A config that remembers which entries were asked for, with their defaults."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self.asked: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:  # type: ignore[override]
        self.asked[key] = default
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.setdefault(key, None)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.setdefault(str(key), None)
        return super().__contains__(key)

    def keys(self) -> Any:
        return self

    def __copy__(self) -> "_Recorder":
        return self


def _known_entries() -> dict[str, Any]:
    """The top-level entries that the installed DeepSpeed reads, with their defaults.

    It accepts unknown ones silently and has no list of those it knows: it reads a config that
    records which entries are asked for.
    """
    from deepspeed.runtime.config import DeepSpeedConfig

    recorder = _Recorder({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1})
    DeepSpeedConfig(recorder)
    return {name: default for name, default in recorder.asked.items() if name != "amp"}
