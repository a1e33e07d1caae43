"""From a configuration to its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from gpst.config import GPT2Config, ModelConfig
from gpst.kernels import choice
from gpst.model.gpst import GPSTModel

if TYPE_CHECKING:
    from gpst.model.gpt2 import GPT2Baseline


def model_class(config: ModelConfig) -> type[GPSTModel] | type[GPT2Baseline]:
    """The class of the model that a configuration describes; it names its losses."""
    if isinstance(config, GPT2Config):
        from gpst.model.gpt2 import GPT2Baseline  # transformers takes seconds to import

        return GPT2Baseline
    return GPSTModel


def build_model(config: ModelConfig) -> nn.Module:
    """The model that a configuration describes.

    Raises:
        ConfigError: GPST_KERNELS is none of the choices, said now and not in the first step.
    """
    choice.requested()
    return model_class(config)(config)  # type: ignore[arg-type]
