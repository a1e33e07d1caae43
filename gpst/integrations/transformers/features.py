"""What the generative model knows after each token of rows of text, given the induced trees."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gpst.chart.decode import decode, trees_of
from gpst.integrations.transformers.rows import Rows
from gpst.model.generator import GeneratorPadding
from gpst.model.gpst import GPSTModel
from gpst.tree import Tree


def features_after_tokens(
    model: GPSTModel, rows: Rows, device: torch.device
) -> tuple[Float[Tensor, "N H"], list[list[Tree]]]:
    """What predicts the token after each token, given the induced trees; and those trees."""
    bos = model.config.bos_token_id
    batch = rows.batch(bos).to(device)
    layout = model.layout(batch, model.parser(batch).detach())
    embedded = model.embedding(batch.tokens)
    recompute = model.activation_checkpointing
    chart = model._inside(layout, embedded, 1.0, "composition" in recompute)
    induced = decode(layout, chart.scores)
    _, features, _ = model.generator(
        model._nodes(layout, induced, chart, embedded),
        model.embedding.weight[bos],
        GeneratorPadding.of(batch),
        layout,
        induced,
        "generator" in recompute,
    )
    trees = iter(trees_of(layout, induced))
    of_rows = [[next(trees) for _ in range(len(row) + 1)][:-1] for row in rows.sentences]
    return features[torch.from_numpy(rows.after_tokens(batch)).to(device)], of_rows
