"""A tiny model, and an oracle that enumerates action sequences and scores each from scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.model.gpst import GPSTModel

COMP = -1


def make_model(seed: int = 0, spread: float = 6.0, **changes) -> GPSTModel:
    """A float64 model in evaluation mode whose predictions are far from uniform."""
    composition = {"dim": 8, "num_heads": 2, "ffn_dim": 16, "num_layers": 2, "score_dim": 8}
    composition |= changes.pop("composition", {})
    sizes = {
        "vocab_size": 6,
        "bos_token_id": 0,
        "max_context_tokens": 64,
        "hidden_dim": 16,
        "num_heads": 2,
        "ffn_dim": 32,
        "num_type_layers": 2,
        "num_token_layers": 2,
    }
    torch.manual_seed(seed)
    model = GPSTModel(
        GPSTConfig(
            **(sizes | changes),
            composition=CompositionConfig(**composition),
            parser=ParserConfig(dim=8, num_heads=2, ffn_dim=16, num_layers=1),
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(spread if parameter.std() < 0.1 else 1.5)
    return model.to(torch.float64).eval()


@dataclass
class Oracle:
    """Slow and plain: no caches, no batches, one hypothesis at a time."""

    model: GPSTModel

    @torch.no_grad()
    def log_p(self, actions: tuple[int, ...], context: list[list[int]] | None = None) -> float:
        """log p of the actions (tokens or COMP), every one scored by an uncached pass.

        Args:
            context: with its sentences a GEN is sure where COMP is impossible.
        """
        model, generator = self.model, self.model.generator
        stack: list[torch.Tensor] = []
        inputs = [model.embedding.weight[0] + generator.position.weight[0]]
        tokens: list[int] = []
        for action in actions:
            if action == COMP:
                right, left = stack.pop(), stack.pop()
                vector = model.composition(left[None], right[None])[0][0]
                vector = F.layer_norm(vector, vector.shape)
                node = model.scaling.up(vector)
                if generator.comp_embedding is not None:
                    node = generator.comp_embedding
                if model.config.last_word:
                    node = node + model.embedding.weight[tokens[-1]]
            else:
                node = model.embedding.weight[action]
                vector = model.scaling.down(node)
                tokens.append(action)
            stack.append(vector)
            inputs.append(node + generator.position.weight[len(tokens)])
        hidden = generator.type_layers(torch.stack(inputs[:-1])[None])[0]
        types = F.log_softmax(generator.type_logits(hidden), -1)
        if context is not None:
            types[self.closed(actions, context), 0] = 0.0
        gens = [t for t, action in enumerate(actions) if action != COMP]
        features = generator.token_features(generator.token_layers(hidden[gens][None])[0])
        words = F.log_softmax(features @ model.embedding.weight.T, -1)
        total = sum(float(types[t, int(action == COMP)]) for t, action in enumerate(actions))
        return total + sum(float(words[k, token]) for k, token in enumerate(tokens))

    def closed(self, actions: tuple[int, ...], context: list[list[int]]) -> list[int]:
        """Numbers of the actions before which at most one constituent is left of the sentence."""
        ends = np.cumsum([len(sentence) for sentence in context])
        numbers, words, constituents = [], 0, 0
        for number, action in enumerate(actions):
            numbers += [number] * (constituents <= 1)
            if action == COMP:
                constituents -= 1
            else:
                constituents = 1 if words in ends else constituents + 1
                words += 1
        return numbers

    def sequences(
        self, context: list[list[int]], atoms: list[list[bool]] | None = None
    ) -> Iterator[tuple[int, ...]]:
        """All action sequences of a context: for each sentence, each of its trees."""
        if not context:
            yield ()
            return
        inside_word = atoms[0] if atoms else [False] * len(context[0])
        for own in self.trees(context[0], 0, len(context[0]) - 1, inside_word):
            for rest in self.sequences(context[1:], atoms[1:] if atoms else None):
                yield own + rest

    def trees(self, words: list[int], i: int, j: int, inside_word: list[bool]):
        if i == j:
            yield (words[i],)
            return
        for k in range(i, j):
            if inside_word[k] and not all(inside_word[i:j]):
                continue  # would cut an atom and hold more than it
            for left in self.trees(words, i, k, inside_word):
                for right in self.trees(words, k + 1, j, inside_word):
                    yield left + right + (COMP,)

    def prefixes(self, context: list[list[int]], sure: bool = False) -> list[float]:
        """Log of the sum of p(actions) over all that end in GEN(token j), for each j.

        Args:
            sure: a GEN is, where COMP is impossible.
        """
        tokens = [token for sentence in context for token in sentence]
        prefixes: list[set[tuple[int, ...]]] = [set() for _ in tokens]
        for actions in self.sequences(context):
            ends = [t for t, action in enumerate(actions) if action != COMP]
            for j, t in enumerate(ends):
                prefixes[j].add(actions[: t + 1])
        known = context if sure else None
        return [log_sum(self.log_p(actions, known) for actions in group) for group in prefixes]


def log_sum(values) -> float:
    found = list(values)
    top = max(found)
    return top + math.log(sum(math.exp(value - top) for value in found))


@pytest.fixture(scope="session")
def tiny() -> Callable[..., GPSTModel]:
    return make_model


@pytest.fixture(scope="session")
def oracle_of() -> type[Oracle]:
    return Oracle


@pytest.fixture(scope="session")
def logsum() -> Callable[..., float]:
    return log_sum
