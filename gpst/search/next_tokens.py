"""Log p of given next tokens, for no more hypotheses than a choice among them needs."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from gpst.search.beam import Beam
from gpst.search.candidates import Reading
from gpst.search.pool import Pool
from gpst.search.vocabulary import TokenScores


class NextTokens:
    """log p of the next tokens of hypotheses that have been read, where a pool must know them."""

    def __init__(self, beam: Beam, reading: Reading, tokens: Int64[Tensor, "C F"]):
        self.tokens = tokens
        self.slots = torch.full_like(tokens, -1)
        """Of the token layers' state."""
        self._beam, self._reading = beam, reading
        self._found: list[tuple[Bool[np.ndarray, "C F"], TokenScores]] = []

    def improve(self, pool: Pool, wanted: Bool[np.ndarray, "C F"]) -> None:
        """Bounds of what has none yet, and the scores of the rest."""
        new = wanted.copy()
        for where, scores in self._found:
            rows = wanted[where].nonzero()[0]
            if len(rows):
                exact = scores.exact(torch.from_numpy(rows).to(self.tokens.device))
                pool.know(wanted & where, exact.cpu().numpy())
            new &= ~where
        if new.any():
            allowed = torch.from_numpy(new).to(self.tokens.device)
            reading = self._reading
            hidden = reading.hidden[allowed[reading.valid]]
            features, slots = self._beam.token_features(hidden, reading.rows, allowed)
            self.slots = torch.where(allowed, slots, self.slots)
            scores = self._beam.token_scores(features, self.tokens[allowed])
            self._found.append((new, scores))
            pool.bound(new, scores.upper.cpu().numpy())
