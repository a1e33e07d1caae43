"""What transformers' Auto classes and loaders must know of GPST."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightRenaming

from gpst.export.former import NAMES_NOW
from gpst.export.huggingface import PREFIX
from gpst.integrations.transformers.causal_lm import GPSTForCausalLM
from gpst.integrations.transformers.classification import GPSTForSequenceClassification
from gpst.integrations.transformers.configuration import GPSTConfig


class _Copy(ConversionOps):
    """One tensor of the file as each of several parameters."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: Any, target_patterns: Any, **_: Any
    ) -> dict[str, Any]:
        [tensor] = input_dict.values()
        tensor = tensor[0] if isinstance(tensor, list) else tensor
        return {name: tensor.clone() for name in target_patterns}


def _conversions() -> list[WeightConverter | WeightRenaming]:
    """Of exports from before (gpst/export/former.py)."""
    return [
        WeightConverter(f"{PREFIX}{then}", [f"{PREFIX}{name}" for name in now], [_Copy()])
        for then, now in NAMES_NOW.items()
    ]


def register() -> None:
    """Makes the Auto classes know GPST; done when a name of this package is first asked for."""
    AutoConfig.register("gpst", GPSTConfig, exist_ok=True)
    register_checkpoint_conversion_mapping("gpst", _conversions(), overwrite=True)
    # There is no model without the head, which is the embedding.
    AutoModel.register(GPSTConfig, GPSTForCausalLM, exist_ok=True)
    AutoModelForCausalLM.register(GPSTConfig, GPSTForCausalLM, exist_ok=True)
    AutoModelForSequenceClassification.register(
        GPSTConfig, GPSTForSequenceClassification, exist_ok=True
    )
