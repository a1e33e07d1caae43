"""Names and shapes of the authors' released weights, for a small model."""

from __future__ import annotations

import torch
from torch import Tensor

V, H, D, P, FFN, CFFN, PFFN, SCORE, POSITIONS = 11, 16, 8, 8, 24, 12, 20, 6, 21
TYPES, TOKENS, INSIDE, PARSER = 2, 3, 3, 2
HEADS = (2, 2, 2)


def layout() -> dict[str, tuple[int, ...]]:
    """Names and shapes of a small model of the release."""
    shapes: dict[str, tuple[int, ...]] = {"bos_embedding": (H,)}

    def linear(name: str, out: int, into: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (out, into), (out,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (H,)

    shapes["embeddings.weight"] = shapes["classifier.weight"] = (V, H)
    shapes["r2d2.outside_root_embedding"] = (D,)
    linear("up_scale", H, D)
    linear("down_scale", D, H)
    linear("dense.0", 4 * H, H)
    linear("dense.3", H, 4 * H)
    linear("insideoutside_dense.0", 4 * D, D)
    linear("insideoutside_dense.3", H, 4 * D)
    norm("action_mlp.0")
    linear("action_mlp.1", H, H)
    linear("action_mlp.4", 2, H)
    for kind, names, layers in (
        ("inside", ("left", "right"), INSIDE),
        ("outside", ("parent", "left", "right"), 1),
    ):
        for name in names:
            linear(f"r2d2.{kind}_enc.{name}_linear.0", D, D)
            linear(f"r2d2.{kind}_enc.{name}_linear.2", SCORE, D)
        for layer in range(layers):
            at = f"r2d2.{kind}_enc.layers.{layer}"
            shapes[f"{at}.self_attn.in_proj_weight"] = (3 * D, D)
            shapes[f"{at}.self_attn.in_proj_bias"] = (3 * D,)
            linear(f"{at}.self_attn.out_proj", D, D)
            linear(f"{at}.linear1", CFFN, D)
            linear(f"{at}.linear2", D, CFFN)
            shapes[f"{at}.position_embedding.weight"] = (4, D)
    shapes["action_layers.wpe.weight"] = (POSITIONS, H)
    norm("generation_layers.ln_f")
    for stack, layers in (("action_layers", TYPES), ("generation_layers", TOKENS)):
        for layer in range(layers):
            at = f"{stack}.h.{layer}"
            norm(f"{at}.ln_1")
            norm(f"{at}.ln_2")
            for name, into, out in (
                ("attn.c_attn", H, 3 * H), ("attn.c_proj", H, H),
                ("mlp.c_fc", H, FFN), ("mlp.c_proj", FFN, H),
            ):  # fmt: skip
                shapes[f"{at}.{name}.weight"], shapes[f"{at}.{name}.bias"] = (into, out), (out,)
    shapes["r2d2.parser.encoder.tok_embeddings.weight"] = (V, P)
    shapes["r2d2.parser.encoder.norm.weight"] = (P,)
    linear("r2d2.parser.score_mlp.0", 3 * P, 2 * P)
    linear("r2d2.parser.score_mlp.3", 1, 3 * P)
    for layer in range(PARSER):
        at = f"r2d2.parser.encoder.layers.{layer}"
        for name in ("wq", "wk", "wv", "wo"):
            shapes[f"{at}.attention.{name}.weight"] = (P, P)
        for name, shape in (("w1", (PFFN, P)), ("w2", (P, PFFN)), ("w3", (PFFN, P))):
            shapes[f"{at}.feed_forward.{name}.weight"] = shape
        for name in ("attention_norm", "ffn_norm"):
            shapes[f"{at}.{name}.weight"] = (P,)
    return shapes


def random_tensors() -> dict[str, Tensor]:
    """A file of the release, filled at random."""
    generator = torch.Generator().manual_seed(0)
    made = {
        name: torch.randn(shape, generator=generator) * (0.4 if len(shape) > 1 else 0.7)
        for name, shape in layout().items()
    }
    made["classifier.weight"] = made["embeddings.weight"]
    return made
