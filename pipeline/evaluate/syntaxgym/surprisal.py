"""Surprisals of a text's tokens: GPT-2's, and GPST's from prefix probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn

from gpst.model.gpst import GPSTModel
from gpst.search.batches import batches
from gpst.search.parse import search_text
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.syntaxgym.suites import Text


@dataclass(frozen=True)
class TokenSurprisals:
    """The tokens of a text in order."""

    spans: tuple[tuple[int, int], ...]
    """(start, end) of each token in characters."""
    bits: tuple[float, ...]
    """-log2 p(token | what is before it)."""


class Surprisals(Protocol):
    """A language model as a suite needs it."""

    def __call__(self, texts: Sequence[str]) -> list[TokenSurprisals]:
        """The surprisals of each text, each read separately after <bos>."""
        ...


Progress = Callable[[int], Any]
"""Called with the number of texts done since the last call."""


class ModelSurprisals:
    """Surprisals of a GPST (word-level search) or a GPT-2 baseline, in batches.

    Args:
        beam: hypotheses of the search; the prefix probabilities are sums over them.
        batch_tokens: tokens read at once, times the beam for GPST.
        progress: called as texts are done.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        beam: int = 300,
        batch_tokens: int = 256,
        progress: Progress = lambda done: None,
    ):
        self._model, self._tokenizer = model, tokenizer
        self._beam, self._batch_tokens, self._progress = beam, batch_tokens, progress
        config: Any = model.config
        self._limit: int = config.max_context_tokens
        if isinstance(model, GPSTModel):
            self._bits_of = self._gpst
        elif isinstance(getattr(model, "gpt2", None), nn.Module):
            self._bits_of = self._gpt2
        else:
            raise ConfigError(f"no surprisals for a {type(model).__name__}; GPST or GPT-2 only")

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> list[TokenSurprisals]:
        """See `Surprisals`. Raises DataError for a text with no tokens or too many."""
        encoded = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]
        for text, encoding in zip(texts, encoded, strict=True):
            if not 0 < len(encoding.ids) <= self._limit:
                raise DataError(
                    f"the text {text[:60]!r} has {len(encoding.ids)} tokens; the model takes 1 to "
                    f"{self._limit} (max_context_tokens)"
                )
        surprisals: dict[int, TokenSurprisals] = {}
        lengths = [len(e.ids) for e in encoded]
        for numbers in batches(lengths, max_tokens=self._batch_tokens, even=False):
            rows = self._bits_of([encoded[number].ids for number in numbers])
            for number, bits in zip(numbers, rows, strict=True):
                surprisals[number] = TokenSurprisals(tuple(encoded[number].offsets), tuple(bits))
            self._progress(len(numbers))
        return [surprisals[number] for number in range(len(texts))]

    def _gpst(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        assert isinstance(self._model, GPSTModel)
        results = search_text(self._model, [[tokens] for tokens in sequences], beam=self._beam)
        return [result.quotient_surprisals.tolist() for result in results]

    def _gpt2(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        model: Any = self._model
        device = next(model.parameters()).device
        longest = max(len(tokens) for tokens in sequences)
        bos = model.config.bos_token_id
        # What stands to the right of a text does not change its causal predictions.
        rows = [[bos, *tokens, *[bos] * (longest - len(tokens))] for tokens in sequences]
        table = torch.tensor(rows, device=device)
        logits = model.gpt2(input_ids=table[:, :-1]).logits.float()
        log_p = F.log_softmax(logits, -1).gather(2, table[:, 1:].unsqueeze(2)).squeeze(2)
        bits = (-log_p / math.log(2.0)).tolist()
        return [row[: len(tokens)] for row, tokens in zip(bits, sequences, strict=True)]


def region_bits(text: Text, tokens: TokenSurprisals) -> tuple[dict[int, float], int]:
    """Surprisal of each region: the sum over the tokens that begin in it.

    A token begins at its first character that is no space. An empty region has 0 bits.

    Returns:
        (bits by region number, how many tokens reach into a further region).
    """
    owner: list[int | None] = [None] * len(text.text)
    for number, start, end in text.regions:
        owner[start:end] = [number] * (end - start)
    bits = {number: 0.0 for number, _, _ in text.regions}
    crossing = 0
    for (start, end), value in zip(tokens.spans, tokens.bits, strict=True):
        # A token of nothing but space belongs to what comes after it.
        at = start
        while at < len(owner) - 1 and owner[at] is None:
            at += 1
        number = owner[at]
        if number is None:
            raise DataError(f"the text {text.text!r}: a token at {start} lies in no region")
        bits[number] += value
        crossing += any(other not in (None, number) for other in owner[at:end])
    return bits, crossing
