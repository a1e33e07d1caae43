"""The small GPST that tests compare with the slow forms: every part is there, no size is equal."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.model.gpst import GPSTModel

CONFIG = GPSTConfig(
    vocab_size=23,
    bos_token_id=1,
    max_context_tokens=300,
    hidden_dim=16,
    num_heads=2,
    ffn_dim=24,
    num_type_layers=1,
    num_token_layers=2,
    composition=CompositionConfig(
        dim=12, num_heads=3, ffn_dim=20, num_layers=2, score_dim=8, max_height=2
    ),
    parser=ParserConfig(dim=8, num_heads=2, ffn_dim=12, num_layers=1),
)


def make_model(seed: int = 0, **changes) -> GPSTModel:
    """A model in float64 with all parameters large enough to matter, and no dropout."""
    composition = dataclasses.replace(CONFIG.composition, **changes.pop("composition", {}))
    torch.manual_seed(seed)
    model = (
        GPSTModel(dataclasses.replace(CONFIG, composition=composition, **changes)).double().eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def make_contexts(lengths: list[list[int]], seed: int = 0) -> list[list[list[int]]]:
    """Random token ids, by the lengths of each context's sentences."""
    rng = np.random.default_rng(seed)
    return [[rng.integers(0, CONFIG.vocab_size, n).tolist() for n in row] for row in lengths]
