"""A model whose losses are known beforehand."""

from __future__ import annotations

import torch
from torch import nn

from gpst.model.losses import LossTerm
from gpst.model.output import ModelOutput


class Known(nn.Module):
    """Says that a token x costs x / 10 nats and every action 1/4 nat; counts its passes."""

    def __init__(self):
        super().__init__()
        self.num_passes = 0

    def forward(self, batch, noise, temperature):
        assert not self.training
        assert not torch.is_grad_enabled()
        assert (noise, temperature) == (0.0, 1.0)
        self.num_passes += 1
        losses = {
            "token": LossTerm(batch.tokens.sum() / 10, "actions"),
            "type": LossTerm(torch.tensor(batch.counts.actions / 4), "actions"),
        }
        height = LossTerm(torch.tensor(3.0 * batch.num_sentences), "sentences")
        return ModelOutput(losses, {"height": height}, torch.zeros(1, 1))
