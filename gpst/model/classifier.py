"""A language model that classifies texts (paper 4.1): a linear layer on the state after the text.

A text is its sentences, then CLS, then the end-of-document token, each of the last two a sentence
of its own. What the end is predicted from is the state after CLS has been read: that goes into the
linear layer. CLS is <bos>, so that the vocabulary stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gpst.batch import BatchCounts, ContextBatch, on_device
from gpst.config import ModelConfig
from gpst.layers.transformer import at_least_fp32, init_std
from gpst.model.losses import LossTerm
from gpst.model.modes import evaluating
from gpst.model.output import ModelOutput

CORE = "core."
"""Of the language model's parameters among a classifier's."""


@dataclass(frozen=True)
class ExampleCounts(BatchCounts):
    """With the number of labelled texts."""

    examples: int = 0


@dataclass(frozen=True)
class LabelledBatch(ContextBatch):
    """Texts, one a context, with a class number each.

    Args:
        labels: (B,).
    """

    labels: Tensor

    @cached_property
    def counts(self) -> ExampleCounts:
        return ExampleCounts(self.num_tokens, self.num_sentences, self.num_contexts)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> LabelledBatch:
        moved = super().to(device, non_blocking)
        assert isinstance(moved, LabelledBatch)
        return replace(moved, labels=self.labels.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> LabelledBatch:
        return replace(self, tokens=self.tokens.pin_memory(), labels=self.labels.pin_memory())


class Classifier(nn.Module):
    """A GPST or GPT-2 baseline and the linear layer.

    Args:
        core: the language model, whose losses stay part of the loss.
    """

    def __init__(self, core: nn.Module, num_labels: int):
        super().__init__()
        self.core = core
        self.classifier = nn.Linear(core.config.hidden_dim, num_labels)  # type: ignore[union-attr]
        nn.init.normal_(self.classifier.weight, std=init_std(self.classifier.in_features))
        nn.init.zeros_(self.classifier.bias)

    @property
    def config(self) -> ModelConfig:
        """The language model's."""
        return self.core.config  # type: ignore[return-value]

    @property
    def activation_checkpointing(self) -> set[str]:
        """The language model's parts that are recomputed."""
        return self.core.activation_checkpointing  # type: ignore[return-value]

    @activation_checkpointing.setter
    def activation_checkpointing(self, parts: set[str]) -> None:
        self.core.activation_checkpointing = parts  # type: ignore[assignment]

    @property
    def induced_trees(self) -> Any:
        """As of the language model, if it has trees."""
        return self.core.induced_trees

    def forward(
        self,
        batch: LabelledBatch,
        noise: float = 0.0,
        temperature: float = 1.0,
    ) -> ModelOutput:
        """The language model's losses, and the cross entropy of the labels."""
        output: ModelOutput = self.core(batch, noise=noise, temperature=temperature)
        logits = self._logits(output, batch)
        loss = F.cross_entropy(logits, batch.labels, reduction="sum")
        return replace(
            output, losses={**output.losses, "classification": LossTerm(loss, "examples")}
        )

    def _logits(self, output: ModelOutput, batch: ContextBatch) -> Float[Tensor, "B C"]:
        last = on_device(batch.context_token_ends - 1, output.features.device)
        states = output.features.index_select(0, last)
        return at_least_fp32(self.classifier(states))

    @torch.no_grad()
    def predict(self, texts: Sequence[Sequence[Sequence[int]]]) -> Int64[Tensor, "B"]:
        """The most probable class of each text (sentences, CLS, end), without dropout or noise."""
        batch = ContextBatch.from_sentences([[list(s) for s in text] for text in texts])
        with evaluating(self):
            moved = batch.to(self.classifier.weight.device)
            return self._logits(self.core(moved), moved).argmax(1)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The language model's, with the linear layer's."""
        groups: dict[str, list[nn.Parameter]] = self.core.parameter_groups()  # type: ignore[operator]
        for parameter in self.classifier.parameters():
            groups["decay" if parameter.ndim >= 2 else "no_decay"].append(parameter)
        return groups


def split_classifier(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(the language model's weights, the linear layer's) of a state dict; the latter may be empty.

    Args:
        weights: of a classifier or of a language model alone.
    """
    if not any(name.startswith(CORE) for name in weights):
        return weights, {}
    core = {n.removeprefix(CORE): w for n, w in weights.items() if n.startswith(CORE)}
    return core, {n: w for n, w in weights.items() if not n.startswith(CORE)}
