"""From a configuration to its model."""

from __future__ import annotations

from torch import nn

from gpst.config import GPT2Config, ModelConfig
from gpst.kernels import choice
from gpst.model.gpst import GPSTModel


def build_model(config: ModelConfig) -> nn.Module:
    """The model that a configuration describes.

    Raises:
        ConfigError: GPST_KERNELS is none of the choices, said now and not in the first step.
    """
    choice.requested()
    if isinstance(config, GPT2Config):
        from gpst.model.gpt2 import GPT2Baseline

        return GPT2Baseline(config)
    return GPSTModel(config)
