"""Perplexity of held-out text with the trees of GPST marginalised over the beam of its search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpst.batch import ContextBatch
from gpst.model import GPST
from gpst.search.batches import search_texts
from pipeline.data import ContextSource
from pipeline.evaluate import evaluation_contexts


@dataclass(frozen=True)
class MarginalEvaluation:
    """Sums over held-out contexts; a beam holds part of the mass, so that nats err upwards only."""

    num_contexts: int
    num_tokens: int
    nats: float
    """-log of the prefix probability of each whole context, from left to right."""
    closed_nats: float
    """The same with the actions that close the last sentence."""
    beam: int
    histories: int
    contexts: tuple[tuple[int, int, float], ...]
    """Of each context its number in the split, its tokens and its nats."""

    @property
    def token_perplexity(self) -> float:
        """exp of the nats per token: no tree is given, so it compares with GPT-2's."""
        return math.exp(min(self.nats / self.num_tokens, 700.0))


def evaluate_marginal(
    model: GPST,
    source: ContextSource,
    *,
    max_contexts: int | None = None,
    beam: int = 20,
    histories: int = 1,
    on_done: Callable[[int], object] | None = None,
) -> MarginalEvaluation:
    """Word-level search over the contexts that `evaluate_model` takes.

    Args:
        source: the held-out split.
        beam: hypotheses kept for each context.
        histories: hypotheses that go on into the next sentence, with the weight of all, see
            `gpst.search.parse.search_text`; the whole beam gives a bound of log p(tokens) itself,
            which is looser and slower in long contexts.
        on_done: hears after each batch how many contexts it had.
    """
    numbers = evaluation_contexts(source, max_contexts).tolist()
    contexts = [sentence_lists(source.batch([number])) for number in numbers]
    sizes = [sum(map(len, context)) for context in contexts]
    results = search_texts(model, contexts, beam=beam, histories=histories, on_done=on_done)
    each = []
    for result in results:
        assert result.prefix_log_p is not None
        each.append(-float(result.prefix_log_p[-1]))
    return MarginalEvaluation(
        num_contexts=len(contexts),
        num_tokens=sum(sizes),
        nats=math.fsum(each),
        closed_nats=-sum(result.log_p for result in results),
        beam=beam,
        histories=histories,
        contexts=tuple(zip(numbers, sizes, each, strict=True)),
    )


def sentence_lists(context: ContextBatch) -> list[list[int]]:
    """The sentences of a batch of one context."""
    cuts = np.cumsum(context.sentence_lengths)[:-1]
    return [part.tolist() for part in np.split(context.tokens.cpu().numpy(), cuts)]
