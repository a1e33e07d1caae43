"""Perplexity of held-out text with the trees of GPST marginalised over the beam of its search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gpst.batch import ContextBatch
from gpst.model.gpst import GPSTModel
from gpst.search.batches import score_batches
from pipeline.data.source import ContextSource
from pipeline.evaluate.held_out import evaluation_contexts


@dataclass(frozen=True)
class ContextSurprisal:
    """-log probabilities of a context, in nats."""

    nats: float
    """Of its tokens, from left to right."""
    closed_nats: float
    """The same with the actions that close the last sentence."""


@dataclass(frozen=True)
class MarginalEvaluation:
    """Sums over held-out contexts, of the probabilities of gpst/search/score.py."""

    num_contexts: int
    num_tokens: int
    nats: float
    closed_nats: float
    beam: int
    histories: int
    contexts: tuple[tuple[int, int, float], ...]
    """Of each context its number in the split, its tokens and its nats."""

    @property
    def token_perplexity(self) -> float:
        """exp of the nats per token: no tree is given, so it compares with GPT-2's."""
        return math.exp(min(self.nats / self.num_tokens, 700.0))


def evaluate_marginal(
    model: GPSTModel,
    source: ContextSource,
    *,
    max_contexts: int | None = None,
    beam: int = 20,
    histories: int = 1,
    known: Mapping[int, ContextSurprisal] | None = None,
    on_done: Callable[[dict[int, ContextSurprisal]], object] = lambda surprisals: None,
) -> MarginalEvaluation:
    """Probabilities of the contexts that `evaluate_model` takes, trees summed over a beam.

    Args:
        source: the held-out split.
        beam: hypotheses kept for each context.
        histories: hypotheses that go on into the next sentence, with the weight of all, see
            `gpst.search.words.WordSearch`.
        known: surprisals of contexts by number, from an interrupted evaluation.
        on_done: called after each batch with its contexts' surprisals.
    """
    numbers = evaluation_contexts(source, max_contexts).tolist()
    contexts = {number: sentence_lists(source.batch([number])) for number in numbers}
    surprisals = {number: one for number, one in (known or {}).items() if number in contexts}
    missing = [number for number in numbers if number not in surprisals]
    lists = [contexts[number] for number in missing]
    for batch, scores in score_batches(model, lists, beam=beam, sentence_beam=histories):
        fresh = {}
        for place, score in zip(batch, scores, strict=True):
            nats = -float(score.log_p.sum())
            fresh[missing[place]] = ContextSurprisal(nats, nats - score.closing_log_p)
        surprisals |= fresh
        on_done(fresh)
    sizes = {number: sum(map(len, context)) for number, context in contexts.items()}
    return MarginalEvaluation(
        num_contexts=len(numbers),
        num_tokens=sum(sizes.values()),
        nats=math.fsum(surprisals[number].nats for number in numbers),
        closed_nats=math.fsum(surprisals[number].closed_nats for number in numbers),
        beam=beam,
        histories=histories,
        contexts=tuple((number, sizes[number], surprisals[number].nats) for number in numbers),
    )


def sentence_lists(context: ContextBatch) -> list[list[int]]:
    """The sentences of a batch of one context."""
    tokens = np.split(context.tokens.cpu().numpy(), context.sentence_ends[:-1])
    return [sentence.tolist() for sentence in tokens]
