"""How tests load and call models through transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

TEXTS = ["The old man", 'She said, "We saw them." Did they go? They', "It isn't"]


def load(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options).eval()


def write(model: Any, **options: Any) -> Any:
    """`generate`, with few hypotheses of the trees."""
    return model.generate(**({"beam": 3} if is_gpst(model) else {}), **options)


def is_gpst(model: Any) -> bool:
    return model.config.model_type == "gpst"
