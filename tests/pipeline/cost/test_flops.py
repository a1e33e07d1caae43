"""The arithmetic of a step against PyTorch's own counter, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpst.batch import ContextBatch
from gpst.config import config_from_dict
from gpst.model.build import build_model
from gpst.model.losses import total_loss
from pipeline.cost.flops import batch_flops

LENGTHS = [[1, 3, 9, 2], [17, 1], [1], [5, 4, 6]]
# Attention with dropout has a form of its own on the CPU, which recomputes and skips.
GPST = {
    "vocab_size": 50,
    "dropout": 0.0,
    "bos_token_id": 0,
    "hidden_dim": 24,
    "num_heads": 2,
    "ffn_dim": 40,
    "num_type_layers": 2,
    "num_token_layers": 1,
    "composition": {
        "dim": 16,
        "num_heads": 2,
        "ffn_dim": 28,
        "num_layers": 2,
        "num_decomposition_layers": 1,
        "score_dim": 12,
    },
    "parser": {"dim": 8, "num_heads": 2, "ffn_dim": 20, "num_layers": 2},
}
GPT2 = {
    "kind": "gpt2",
    "dropout": 0.0,
    "vocab_size": 50,
    "bos_token_id": 0,
    "hidden_dim": 24,
    "num_heads": 2,
    "ffn_dim": 40,
    "num_layers": 2,
}


class NoModules:
    """In place of the counter's table by module, whose hooks fail on views of custom Functions."""

    parents = frozenset({"Global"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def in_place(_self, a, b, **_) -> int:
    """self += a @ b, of shapes."""
    return 2 * a[0] * a[1] * b[1]


def counter() -> FlopCounterMode:
    # PyTorch leaves out the form that adds in place.
    mode = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place})
    mode.mod_tracker = NoModules()  # type: ignore[assignment]
    return mode


def batch_of(lengths: list[list[int]]) -> ContextBatch:
    random = np.random.default_rng(0)
    return ContextBatch.from_sentences(
        [[random.integers(1, 50, n).tolist() for n in context] for context in lengths]
    )


def counted(config: dict[str, Any], batch: ContextBatch) -> tuple[float, float, Any]:
    """(forward without gradient, forward and backward, the model's output), by PyTorch."""
    torch.manual_seed(0)
    model = build_model(config_from_dict(config))
    model.train()
    # The math form is made of matrix products; the counter does not know the CPU's flash form.
    with sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(1)
        with counter() as forward, torch.no_grad():
            model(batch)
        torch.manual_seed(1)  # dropout reaches the parser's scores, and so the chart
        with counter() as training:
            output = model(batch)
            total_loss(output.losses, batch.counts).backward()
    return forward.get_total_flops(), training.get_total_flops(), output


@pytest.mark.parametrize(
    "changes",
    [{}, {"gradient_stop": False}, {"surrogate": False}],
    ids=["paper", "no_gradient_stop", "no_surrogate"],
)
def test_gpst_as_pytorch_counts_it(changes):
    config, batch = GPST | changes, batch_of(LENGTHS)
    forward, training, output = counted(config, batch)
    flops = batch_flops(config_from_dict(config), batch, output.sizes)
    assert sum(flops.forward.values()) == forward
    # Two sums over rows are written as products with vectors; they are not counted.
    assert flops.total == pytest.approx(training, rel=1.5e-3)
    assert flops.total <= training
    assert 2.9 < flops.total / sum(flops.forward.values()) < 3.5


def test_gpt2_as_pytorch_counts_it():
    batch = batch_of(LENGTHS)
    forward, training, output = counted(GPT2, batch)
    flops = batch_flops(config_from_dict(GPT2), batch, output.sizes)
    assert (sum(flops.forward.values()), flops.total) == (forward, training)


def test_gpt2_by_hand():
    # One context of 4 tokens: per layer 4 positions x (24x72 + 24x24 + 24x40 + 40x24) weights,
    # attention 2 x 4 x 4 x 24; the head 4 x 24 x 50; all times 2, and times 3 with backward.
    flops = batch_flops(config_from_dict(GPT2), batch_of([[1, 3]]), {})
    stack = 2 * 2 * (4 * (1728 + 576 + 960 + 960) + 2 * 4 * 4 * 24)
    assert flops.forward == {"generator": stack, "vocabulary": 2 * 4 * 24 * 50}
    assert flops.total == 3 * (stack + 9600)


def test_recomputation_is_not_counted():
    config, batch = config_from_dict(GPST), batch_of(LENGTHS)
    model = build_model(config)
    model.activation_checkpointing = {"composition", "generator"}  # type: ignore[assignment]
    with sdpa_kernel(SDPBackend.MATH), counter() as training:
        output = model(batch)
        total_loss(output.losses, batch.counts).backward()
    assert batch_flops(config, batch, output.sizes).total < training.get_total_flops()


def test_the_paper_s_small_model_costs_what_its_products_do():
    """The paper's sizes: forward MFLOP per token, sentences of about 24 tokens."""
    config = config_from_dict(
        {"vocab_size": 30_522, "bos_token_id": 0, "hidden_dim": 768, "num_heads": 12}
        | {"ffn_dim": 3072, "num_type_layers": 3, "num_token_layers": 9}
    )
    batch = batch_of([[24]] * 42)  # short contexts: attention is left out
    # About 4 edges and 3.5 cells a token in a chart of window 2.
    tokens = batch.num_tokens
    sizes = {"edges": 4 * tokens, "edges_over_tokens": 0, "cells": 3.5 * tokens}
    flops = batch_flops(config, batch, sizes)
    per_token = {name: value / batch.num_tokens / 1e6 for name, value in flops.forward.items()}
    assert per_token["vocabulary"] == pytest.approx(2 * 46.9, rel=0.01)
    assert per_token["generator"] + 46.9 == pytest.approx(259, rel=0.06)
    assert per_token["inside"] == pytest.approx(57, rel=0.1)
    assert per_token["outside"] == pytest.approx(28, rel=0.1)
