"""The word-level search as a plain loop over hypotheses, each with its own keys and values."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpst.layers.composition import plain_norm
from gpst.model.gpst import GPSTModel
from gpst.search.candidates import COMP
from gpst.search.history import History


@dataclass
class Hypothesis:
    """Of the plain loop: everything its own."""

    log_p: float
    stack: list[Tensor]
    pending: int | None
    words: int
    last: int
    """The last token written."""
    types: History
    tokens: History


def cloned(history: History) -> History:
    """A hypothesis' own keys and values."""
    copied = copy.copy(history)
    copied.past = history.past.clone()
    copied.caches = [cache.clone() for cache in history.caches]
    return copied


class PlainLoop:
    """The same search, hypothesis by hypothesis."""

    def __init__(self, model: GPSTModel):
        self.model = model
        self.zero = torch.zeros(1, 1, dtype=torch.int64)

    def _step(self, history: History, x: Tensor) -> Tensor:
        out, slots = history.step(x.view(1, -1), self.zero, self.zero == 0)
        history.select(self.zero, slots.unsqueeze(2))
        return out

    def _read(self, h: Hypothesis) -> Tensor:
        model = self.model
        if h.pending == COMP:
            right, left = h.stack.pop(), h.stack.pop()
            vector = plain_norm(model.composition.compose(left[None], right[None]))[0]
            node = model.scaling.up(vector)
            if model.config.last_word:
                node = node + model.embedding.weight[h.last]
            h.stack.append(vector)
        else:
            token = model.config.bos_token_id if h.pending is None else h.pending
            node = model.embedding.weight[token]
            if h.pending is not None:
                h.stack.append(model.scaling.down(node))
        x = model.generator.input_at(node, torch.tensor(h.words))
        return self._step(h.types, x)

    def _grown(self, h: Hypothesis, log_p: float, pending: int, tokens: History) -> Hypothesis:
        words = h.words + (pending != COMP)
        last = h.last if pending == COMP else pending
        histories = cloned(h.types), cloned(tokens)
        return Hypothesis(log_p, list(h.stack), pending, words, last, *histories)

    def _expand(self, h: Hypothesis, token: int | None) -> list[Hypothesis]:
        generator = self.model.generator
        hidden = self._read(h)
        gen, comp = F.log_softmax(generator.type_logits(hidden), -1).flatten().tolist()
        grown = []
        if len(h.stack) > 1:
            grown.append(self._grown(h, h.log_p + comp, COMP, h.tokens))
        if token is not None:
            tokens = cloned(h.tokens)
            features = generator.token_features(self._step(tokens, hidden))
            scores = F.log_softmax(features @ self.model.embedding.weight.T, -1).flatten()
            grown.append(self._grown(h, h.log_p + gen + float(scores[token]), token, tokens))
        return grown

    @torch.no_grad()
    def parse(self, sentence: list[int], beam: int) -> float:
        """Log of the sum over the beam."""
        weight, generator = self.model.embedding.weight, self.model.generator
        histories = (
            History(generator.type_layers, 1, 1, weight),
            History(generator.token_layers, 1, 1, weight),
        )
        hypotheses = [Hypothesis(0.0, [], None, 0, -1, *histories)]
        for token in [*sentence, None]:
            done: list[Hypothesis] = []
            active = hypotheses
            while active:
                pool = done + [new for h in active for new in self._expand(h, token)]
                hypotheses = sorted(pool, key=lambda h: -h.log_p)[:beam]
                # The last COMP of a sentence leaves one constituent: nothing more to do.
                going = [
                    h.pending == COMP and (token is not None or len(h.stack) != 2)
                    for h in hypotheses
                ]
                active = [h for h, g in zip(hypotheses, going, strict=True) if g]
                done = [h for h, g in zip(hypotheses, going, strict=True) if not g]
            hypotheses = done
        return float(torch.logsumexp(torch.tensor([h.log_p for h in hypotheses]), 0))
