"""The authors' released weights (`model.bin`) as ours.

Their file is a plain state dict. Its names and shapes are read here, tensor by tensor; what the two
models compute is the same function of the tokens (a test compares the logits), up to the rounding
of sums. Three of their parameters have no place in ours and are folded into others:

* role embeddings of the composition's second and later layers. Those layers read vectors of mean
  zero, so that weights along the all-ones direction see the roles alone.
* the vector of <bos>, which stands at position 0 and nowhere else: position 0 takes it up.
* the bias of the boundary score, which no order and no softmax sees.

The sibling's score in the outside pass has two MLPs there and one here; the auto-encoding loss
alone uses it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.integrations.released_weights.names import Mapped, ReleasedWeightsError, map_all, required

WRAPPER = "module."
"""Before the names in files that DistributedDataParallel wrote."""
_HEAD_WIDTHS = {"generator": 64, "composition": 32}
_PARSER_HEADS = 8


@dataclass(frozen=True)
class Converted:
    """Our model from their file."""

    config: GPSTConfig
    weights: dict[str, Tensor]
    report: list[Mapped]


def read_tensors(file: str | Path) -> dict[str, Tensor]:
    """The tensors in a torch file; nothing else is unpickled.

    Raises:
        ReleasedWeightsError: no such file, not torch's, or it holds more than tensors by name.
    """
    path = Path(file)
    if not path.is_file():
        raise ReleasedWeightsError(f"{path} is no file; give the model.bin of a release")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd pickles, which are refused anyway
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise ReleasedWeightsError(
            f"{path} holds more than tensors and is not unpickled ({reason[:120]})"
        ) from None
    except Exception as error:  # torch fails on foreign bytes in many ways
        reason = " ".join(str(error).split())[:160]
        raise ReleasedWeightsError(f"{path} cannot be read as torch weights: {reason}") from None
    if not isinstance(loaded, dict) or not loaded:
        raise ReleasedWeightsError(f"{path} holds a {type(loaded).__name__}, no tensors by name")
    odd = [name for name, value in loaded.items() if not isinstance(value, Tensor)]
    if odd:
        raise ReleasedWeightsError(
            f"{path}: {odd[0]!r} is no tensor; give the model's file, not a trainer's"
        )
    return {str(name).removeprefix(WRAPPER): value for name, value in loaded.items()}


def convert(
    tensors: Mapping[str, Tensor],
    *,
    bos_token_id: int,
    heads: tuple[int, int, int] | None = None,
) -> Converted:
    """Our configuration and weights.

    Args:
        tensors: names without the wrapper's prefix.
        bos_token_id: written into the configuration; the vector itself comes from their file.
        heads: attention heads of generator, composition and parser; by default those of the
            released sizes (64 and 32 features a head; 8 heads). Shapes do not tell them.
    Raises:
        ReleasedWeightsError: a tensor is missing, unknown or of the wrong shape.
        gpst.config.ConfigError: the sizes do not fit each other.
    """
    config = _config(tensors, bos_token_id, heads)
    work = map_all(tensors, config)
    left = sorted(set(tensors) - work.used)
    if left:
        raise ReleasedWeightsError(
            f"{left[0]!r} has no place in a GPST (of {len(left)} such tensors): another kind of "
            "model of the release (its external vocabulary, a fine-tuned head)?"
        )
    return Converted(config, work.weights, work.report)


def _config(
    tensors: Mapping[str, Tensor], bos: int, heads: tuple[int, int, int] | None
) -> GPSTConfig:
    if any(name.startswith(("gpt.transformer.", "transformer.h.")) for name in tensors):
        raise ReleasedWeightsError(
            "these are the weights of a GPT-2 baseline of the release: transformers' "
            "GPT2LMHeadModel loads them as they are (cut `gpt.` off the names)"
        )

    def size(name: str, axis: int) -> int:
        return required(tensors, name, None).shape[axis]

    def count(pattern: str) -> int:
        matches = (re.match(pattern, name) for name in tensors)
        return 1 + max((int(m[1]) for m in matches if m), default=-1)

    hidden, dim = size("up_scale.weight", 0), size("up_scale.weight", 1)
    parser_dim = size("r2d2.parser.encoder.tok_embeddings.weight", 1)
    generator_heads, composition_heads, parser_heads = heads or (
        max(1, hidden // _HEAD_WIDTHS["generator"]),
        max(1, dim // _HEAD_WIDTHS["composition"]),
        _PARSER_HEADS,
    )
    return GPSTConfig(
        vocab_size=size("embeddings.weight", 0),
        bos_token_id=bos,
        max_context_tokens=size("action_layers.wpe.weight", 0) - 1,
        hidden_dim=hidden,
        num_heads=generator_heads,
        ffn_dim=size("action_layers.h.0.mlp.c_fc.weight", 1),
        num_type_layers=count(r"action_layers\.h\.(\d+)\."),
        num_token_layers=count(r"generation_layers\.h\.(\d+)\."),
        init="paper",
        token_head_dim=size("dense.0.weight", 0),
        composition=CompositionConfig(
            dim=dim,
            num_heads=composition_heads,
            ffn_dim=size("r2d2.inside_enc.layers.0.linear1.weight", 0),
            num_layers=count(r"r2d2\.inside_enc\.layers\.(\d+)\."),
            num_decomposition_layers=count(r"r2d2\.outside_enc\.layers\.(\d+)\."),
            score_dim=size("r2d2.inside_enc.left_linear.2.weight", 0),
        ),
        parser=ParserConfig(
            dim=parser_dim,
            num_heads=parser_heads,
            ffn_dim=size("r2d2.parser.encoder.layers.0.feed_forward.w1.weight", 0),
            num_layers=count(r"r2d2\.parser\.encoder\.layers\.(\d+)\."),
            score_dim=size("r2d2.parser.score_mlp.0.weight", 0),
        ),
    )
