"""Probabilities of given texts, token by token, with trees summed over a beam (words.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from gpst.search.constraints import Context, check_contexts
from gpst.search.words import ENDS, WordSearch


@dataclass(frozen=True)
class TextScore:
    """What a model says of the tokens of a context."""

    log_p: Float[np.ndarray, "N"]
    """log p(token | tokens before it), nats. At the first token of a further sentence it includes
    that the sentence before has ended: over the tokens it then sums to the probability of that."""
    closing_log_p: float
    """log p(the last sentence ends here | all tokens), nats."""
    most_probable: Bool[np.ndarray, "N"] | None
    """Whether each token is the most probable one, if that was asked for."""

    @property
    def surprisals(self) -> Float[np.ndarray, "N"]:
        """-log2 p(token | tokens before it), bits."""
        return -self.log_p / math.log(2.0)


@torch.inference_mode()
def score_text(
    model: GPSTModel,
    contexts: Sequence[Context],
    *,
    beam: int = 20,
    sentence_beam: int = 1,
    compare: bool = False,
) -> list[TextScore]:
    """Scores contexts, all at once; dropout is off.

    Args:
        contexts: token ids, as contexts[context][sentence][token].
        beam: hypotheses kept for each context.
        sentence_beam: of them, those that go on into a further sentence, see `WordSearch`.
        compare: whether each token is the most probable one is wanted, too.
    Raises:
        ValueError: an empty context or one longer than max_context_tokens; beam or sentence_beam
            below 1.
    """
    lengths = check_contexts(contexts, model.config.max_context_tokens)
    with evaluating(model):
        search = WordSearch(model, len(contexts), beam, sentence_beam=sentence_beam)
        tokens, places = text_tables(contexts, lengths, search.words.device)
        ends = torch.tensor(lengths, device=search.words.device)
        after = search.log_p.new_zeros(tokens.shape)
        best = torch.zeros_like(tokens, dtype=torch.bool)
        while bool((~(ready := search.ready) | (search.words < ends)).any()):
            if bool((writes := ready & (search.words < ends)).any()):
                column = search.words.unsqueeze(1)
                now = tokens.gather(1, column)
                search.look(writes)
                if compare:
                    right = search.next_log_p().argmax(1, keepdim=True) == now
                    right &= writes.unsqueeze(1)
                    best.scatter_(1, column, right | best.gather(1, column))
                search.write(now.squeeze(1))
                kept = after.gather(1, column)
                log_p = torch.where(writes, search.log_p, kept.squeeze(1))
                after.scatter_(1, column, log_p.unsqueeze(1))
            search.go_up(places.gather(1, search.words.unsqueeze(1)).squeeze(1), ~search.ready)
    prefixes, closed = after.cpu().numpy(), search.log_p.cpu().numpy()
    return [
        TextScore(
            np.diff(prefix[:length], prepend=0.0),
            float(last - prefix[length - 1]),
            of_context[:length] if compare else None,
        )
        for prefix, length, last, of_context in zip(
            prefixes, lengths, closed, best.cpu().numpy(), strict=True
        )
    ]


def text_tables(
    contexts: Sequence[Context], lengths: Sequence[int], device: torch.device
) -> tuple[Int64[Tensor, "C words"], Int64[Tensor, "C words"]]:
    """Of 0 to N tokens written: the next token (0 after the last), and the place after them."""
    tables = np.zeros((2, len(contexts), max(lengths) + 1), np.int64)
    for number, (context, length) in enumerate(zip(contexts, lengths, strict=True)):
        tables[0, number, :length] = [token for sentence in context for token in sentence]
        tables[1, number, np.cumsum([len(s) for s in context], dtype=np.int64)] = ENDS
    tokens, places = torch.from_numpy(tables).to(device)
    return tokens, places
