"""What `generate` keeps from token to token: a search over the trees of every row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from gpst.search.sampling import check_seed
from gpst.search.words import OPEN, WordSearch


class LeftToRight:
    """p(next token | a row), by gpst/search/words.py; where sentences end is not known.

    Rows may come in any order, repeat and be dropped from call to call: each goes on from the
    context that has read its beginning. Equal rows are searched once.

    Args:
        beam: hypotheses of the trees of a row.
        final_tokens: tokens that may end a sentence.
    """

    def __init__(self, model: GPSTModel, beam: int, final_tokens: Collection[int]):
        self.model, self.beam, self.final_tokens = model, beam, final_tokens
        self._search: WordSearch | None = None
        self._read: dict[tuple[int, ...], int] = {}
        """The context that has read these tokens."""

    @torch.no_grad()
    def next_log_p(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "B V"]:
        """log p of every next token of each row.

        Raises:
            ValueError: a row longer than the model takes.
        """
        limit = self.model.config.max_context_tokens
        longest = max(map(len, rows))
        if longest > limit:
            raise ValueError(
                f"a text has {longest} tokens; the model takes {limit} (max_context_tokens)"
            )
        texts = list(dict.fromkeys(map(tuple, rows)))
        with evaluating(self.model):
            search = self._going_on_to(texts)
            self._read_on(search, texts)
            self._read = {text: number for number, text in enumerate(texts)}
            search.look(torch.ones_like(search.ready))
            log_p = search.next_log_p()
        places = [self._read[tuple(row)] for row in rows]
        return log_p[torch.tensor(places, device=log_p.device)]

    def _going_on_to(self, texts: Sequence[tuple[int, ...]]) -> WordSearch:
        """A search whose contexts have read beginnings of the texts."""
        lengths = sorted({len(text) for text in self._read}, reverse=True)
        beginnings = [[text[:length] for length in lengths] for text in texts]
        known = [[self._read[b] for b in begins if b in self._read] for begins in beginnings]
        if self._search is None or not all(known):
            size, final = len(texts), self.final_tokens
            self._search = WordSearch(self.model, size, self.beam, final_tokens=final)
        elif (parents := [of_text[0] for of_text in known]) != list(range(len(self._read))):
            self._search.select(torch.tensor(parents, device=self._search.words.device))
        return self._search

    def _read_on(self, search: WordSearch, texts: Sequence[tuple[int, ...]]) -> None:
        lengths = torch.tensor([len(text) for text in texts], device=search.words.device)
        tokens = torch.zeros(len(texts), int(lengths.max()) + 1, dtype=torch.int64)
        for number, text in enumerate(texts):
            tokens[number, : len(text)] = torch.tensor(text)
        tokens = tokens.to(lengths.device)
        unknown = torch.full_like(lengths, OPEN)
        while bool((~(ready := search.ready) | (search.words < lengths)).any()):
            if bool((writes := ready & (search.words < lengths)).any()):
                search.look(writes)
                search.write(tokens.gather(1, search.words.unsqueeze(1)).squeeze(1))
            search.go_up(unknown, ~search.ready)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Inside, torch draws from this seed; after it, as if nothing had been drawn."""
    if seed is None:
        yield
        return
    check_seed(seed)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(seed))
        yield
