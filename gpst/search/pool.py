"""Which continuations a beam keeps when hypotheses are read several actions ahead.

A hypothesis may join constituents several times before it writes the next token. Its nodes on the
way up do not depend on what the model says of them, so that several levels are read at once; what
is kept is then found level by level, as if each had been read after the one before it:

    pool = hypotheses that stay as they are, and for those that have gone up: COMP, and GEN
    the b best of the pool go on to the next level

Scores of GEN are dear, so they are bounds at first. `Pool.keep` says which ones it must know. A
score only falls, so that what is below the b-th best without the token needs none. How far a token
lowers it is nearly the same for all hypotheses of a context: once enough are known, others are
taken to be at most so far above them as `Expected.most` says. This alone is no proof;
`benchmarks/bench_search.py --check` compares with a search that leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

ENOUGH = 16
"""Tokens' scores of a context that others are judged by."""
SPREADS, MARGIN = 2.0, 0.5
"""How far above the best known score others can be: spreads of those known, and nats."""


_LEAST = np.finfo(np.float64).min


class Expected:
    """What is known of log p of the next token of each context, nats."""

    def __init__(self, num_contexts: int):
        self._least = np.zeros(num_contexts)
        self._most = np.zeros(num_contexts)
        self.known = np.zeros(num_contexts, np.int64)
        """Hypotheses for which it is known."""

    def restart(self, where: Bool[np.ndarray, "C"]) -> None:
        """Some contexts have another next token."""
        self._least[where], self._most[where], self.known[where] = np.inf, -np.inf, 0

    def add(self, contexts: Int64[np.ndarray, "M"], log_p: Float[np.ndarray, "M"]) -> None:
        np.minimum.at(self._least, contexts, log_p)
        np.maximum.at(self._most, contexts, log_p)
        np.add.at(self.known, contexts, 1)

    @property
    def most(self) -> Float[np.ndarray, "C"]:
        """What no hypothesis' is expected to exceed."""
        some = self.known >= ENOUGH
        spread = np.where(some, self._most, 0.0) - np.where(some, self._least, 0.0)
        above = np.where(some, self._most, 0.0) + SPREADS * spread + MARGIN
        return np.where(some, np.minimum(above, 0.0), 0.0)


@dataclass(frozen=True)
class Kept:
    """The b hypotheses of each context, best first."""

    log_p: Float[np.ndarray, "C b"]
    """Minus infinity: there is none."""
    level: Int64[np.ndarray, "C b"]
    """Of the last node that was read, -1 for a hypothesis that stays as it is."""
    column: Int64[np.ndarray, "C b"]
    """Of the reading; of one that stays as it is, its row in the beam."""
    wrote: Bool[np.ndarray, "C b"]
    """GEN, or else COMP or nothing."""


class Pool:
    """Scores of continuations, nats; C contexts, F hypotheses that are read, L levels.

    Continuations are numbered: hypotheses that stay as they are; those that go up to level 0 (all
    that are read), to levels 1 to L (COMP one level below); GEN of levels 0 to L - 1; and none.

    Args:
        unread: of the hypotheses that stay as they are, minus infinity for others.
        read: which nodes were read.
        comp: of COMP after each node, minus infinity where it is impossible.
        gen: of GEN without the token.
        guess: of log p of a token, where a guess does.
        size: b.
        expected: of the contexts' next tokens; None where hypotheses have several.
    """

    def __init__(
        self,
        unread: Float[np.ndarray, "C K"],
        read: Bool[np.ndarray, "C L F"],
        comp: Float[np.ndarray, "C L F"],
        gen: Float[np.ndarray, "C L F"],
        guess: float,
        size: int,
        expected: Expected | None = None,
    ):
        contexts, self._levels, self._width = read.shape
        self._unread, self._size = unread.shape[1], size
        self._first_gen = self._unread + self._width * (self._levels + 1)
        none, going_up = np.full((contexts, 1), -np.inf), np.where(read[:, 0], 0.0, -np.inf)
        parts = unread, going_up, comp.reshape(contexts, -1), gen.reshape(contexts, -1), none
        self._scores = np.concatenate(parts, 1)
        self._gen = self._scores[:, self._first_gen : -1]
        self._before = self._gen.copy()
        self._gen += guess
        self._bound = np.concatenate((self._before, none), 1)
        """What GEN's scores do not exceed; minus infinity for those that are known."""
        self._unbounded = np.ones(self._gen.shape, bool)
        self._expected = expected
        self._expect()
        # Numbers beyond the levels are never read.
        self._read = np.zeros(self._scores.shape, bool)
        self._read[:, self._unread : self._first_gen - self._width] = read.reshape(contexts, -1)
        self._offset = np.arange(contexts)[:, None] * self._scores.shape[1]

    def bound(self, where: Bool[np.ndarray, "C N"], log_p: Float[np.ndarray, "M"]) -> None:
        """Log p of some tokens is at most this; N counts levels times hypotheses."""
        self._gen[where] = self._bound[:, :-1][where] = self._before[where] + log_p
        self._unbounded &= ~where

    def know(self, where: Bool[np.ndarray, "C N"], log_p: Float[np.ndarray, "M"]) -> None:
        """Log p of some tokens."""
        self._gen[where] = self._before[where] + log_p
        self._bound[:, :-1][where] = -np.inf
        if self._expected is not None:
            self._expected.add(where.nonzero()[0], log_p)
            self._expect()

    def _expect(self) -> None:
        if self._expected is not None:
            most = self._before + self._expected.most[:, None]
            np.copyto(self._bound[:, :-1], most, where=self._unbounded)

    def keep(self) -> tuple[Kept, Bool[np.ndarray, "C N"]]:
        """What is kept by the scores so far, and the GEN that must be known before it is sure."""
        total, width, offset = self._scores.shape[1], self._width, self._offset
        none, to_gen = offset + (total - 1), (self._levels + 1) * width
        # Places in the flat table of bounds.
        bounds = self._bound.reshape(-1)
        to_bound = np.arange(len(offset))[:, None] * self._bound.shape[1]
        to_bound = to_bound - offset - self._first_gen
        wanted = np.zeros(bounds.shape, bool)
        numbers = np.arange(self._unread + width) + offset
        for _ in range(self._levels):
            going = self._read.take(numbers)
            if not going.any():
                break
            gen = np.where(going, numbers + to_gen, none)
            stay, up = np.where(going, none, numbers), np.where(going, numbers + width, none)
            numbers = np.concatenate((stay, up, gen), 1)
            scores = self._scores.take(numbers)
            order = (-scores).argsort(1, "stable")[:, : self._size]
            order += np.arange(len(order))[:, None] * scores.shape[1]
            # A GEN that is not known decides nothing where it is below the last one kept.
            place = gen + to_bound
            bound = bounds.take(place)
            unsure = bound >= np.maximum(scores.take(order[:, -1:]), _LEAST)
            wanted[place[unsure]] = True
            numbers = numbers.take(order)
        numbers = numbers - offset
        return self._kept(numbers), self._first(numbers, wanted.reshape(self._bound.shape)[:, :-1])

    def _first(
        self, kept: Int64[np.ndarray, "C b"], wanted: Bool[np.ndarray, "C N"]
    ) -> Bool[np.ndarray, "C N"]:
        """Of what must be known, what is known first: others are then judged by it."""
        if self._expected is None:
            return wanted
        is_kept = np.zeros(self._scores.shape, bool)
        is_kept[np.arange(len(kept))[:, None], kept] = True
        first = wanted & is_kept[:, self._first_gen : -1]
        judged = (self._expected.known >= ENOUGH) | ~first.any(1)
        return np.where(judged[:, None], wanted, first)

    def _kept(self, numbers: Int64[np.ndarray, "C b"]) -> Kept:
        log_p = self._scores.take(numbers + self._offset)
        numbers = np.where(log_p > -np.inf, numbers, 0)
        wrote = numbers >= self._first_gen
        stays = numbers < self._unread
        first = np.where(wrote, self._first_gen, self._unread + self._width)
        level, column = np.divmod(numbers - first, self._width)
        return Kept(log_p, np.where(stays, -1, level), np.where(stays, numbers, column), wrote)
