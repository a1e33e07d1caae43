"""The state of a search: C contexts with b hypotheses each, as tensors on the model's device.

A hypothesis is a sequence of actions. Its last action is *pending*: it has been chosen and paid
for, but the model has not read its node yet. `Beam.read` lets the model read pending nodes,
which gives the log probabilities of the next action; `Beam.keep` puts chosen continuations in the
place of the hypotheses.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gpst.model.gpst import GPSTModel
from gpst.search.candidates import COMP, START, Ahead, Candidates, Reading
from gpst.search.history import History
from gpst.search.nodes import Nodes
from gpst.search.vocabulary import TokenScores, Vocabulary, numbers

_LARGEST = 1_000_000
"""Tables of hypotheses are made at once."""


def checked_beam(beam: object) -> int:
    """A number of hypotheses.

    Raises:
        ValueError: it is none.
    """
    whole = isinstance(beam, Integral) and not isinstance(beam, bool)
    if not whole or not 1 <= int(beam) <= _LARGEST:  # type: ignore[arg-type]
        raise ValueError(
            f"beam: {beam} is not allowed; it must be a whole number from 1 to {_LARGEST:,}"
        )
    return int(beam)  # type: ignore[arg-type]


class Beam:
    """See the module. All hypotheses start empty; the first of each context is the only live one.

    Args:
        model: in evaluation mode.
        num_contexts: C.
        beam: b.
    """

    def __init__(self, model: GPSTModel, num_contexts: int, beam: int):
        self.model, beam = model, checked_beam(beam)
        weight = model.embedding.weight
        device = weight.device

        def table(value: int) -> Int64[Tensor, "C b"]:
            return torch.full((num_contexts, beam), value, dtype=torch.int64, device=device)

        self.log_p: Float[Tensor, "C b"] = torch.full(
            (num_contexts, beam), -torch.inf, dtype=torch.float64, device=device
        )
        self.log_p[:, 0] = 0.0
        self.words = table(0)
        self.pending = table(START)
        self.top = table(0)
        """The last node read, which is the constituent on top of the stack."""
        generator = model.generator
        self._types = History(generator.type_layers, num_contexts, beam, weight)
        self._tokens = History(generator.token_layers, num_contexts, beam, weight)
        self._vocabulary = Vocabulary(model)
        self._nodes = Nodes(model, num_contexts)

    @property
    def alive(self) -> Bool[Tensor, "C b"]:
        """Hypotheses that have a probability."""
        return self.log_p > -torch.inf

    def pending_start(self) -> Int64[Tensor, "C b"]:
        """First token of the constituent that the pending action puts on the stack."""
        nodes = self._nodes
        joined = nodes.start.gather(1, nodes.below.gather(1, self.top))
        return torch.where(self.pending == COMP, joined, (self.words - 1).clamp_min(0))

    def read(self, active: Bool[Tensor, "C b"], ahead: Ahead | None = None) -> Reading:
        """Lets the model read the pending nodes of the active hypotheses (at least one).

        Args:
            ahead: nodes after them are read, too, each as if COMP had been chosen.
        """
        width = int(active.sum(1).max())
        rows = active.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
        valid = active.gather(1, rows)
        # Dead hypotheses only fill the table; their counts must not point outside of any.
        words = self.words.gather(1, rows).masked_fill(~valid, 0)
        pending, top = self.pending.gather(1, rows), self.top.gather(1, rows)
        chains = self._nodes.chains(pending, top, words, valid)
        if ahead is not None:
            comp_limit, closed = (x.gather(1, rows) for x in (ahead.comp_limit, ahead.closed_start))
            chains = self._nodes.longer(chains, comp_limit, closed, ahead.most)
        levels = chains.exists.shape[1]
        rows, words = rows.repeat(1, levels), words.repeat(1, levels)
        valid, start = chains.exists.flatten(1), chains.integers[0].flatten(1)
        inputs, vectors = self._nodes.inputs(chains)
        generator = self.model.generator
        at = generator.input_at(inputs, words[valid])
        hidden, slots = self._types.step(at, rows, valid, levels)
        self._nodes.store(slots, vectors, chains, self._types.capacity)
        logits = numbers(generator.type_logits(hidden))
        types = logits.new_zeros(*valid.shape, 2, dtype=torch.float64)
        types[valid] = F.log_softmax(logits, -1).to(torch.float64)
        gen_log_p, comp_log_p = types.unbind(-1)
        log_p = self.log_p.gather(1, rows)
        if levels > 1:
            each = comp_log_p.view(chains.exists.shape)
            log_p = log_p + (each.cumsum(1) - each).flatten(1)
        log_p = log_p.masked_fill(~valid, -torch.inf)
        return Reading(
            rows, valid, log_p, words, start, hidden, gen_log_p, comp_log_p, slots, levels
        )

    def token_features(
        self, hidden: Float[Tensor, "M H"], rows: Int64[Tensor, "C F"], allowed: Bool[Tensor, "C F"]
    ) -> tuple[Float[Tensor, "M H"], Int64[Tensor, "C F"]]:
        """What the tied embedding is multiplied with, and the slots of the token layers.

        Args:
            hidden: outputs of the type layers, of the M allowed ones of the hypotheses `rows`, in
                order.
        """
        out, slots = self._tokens.step(hidden, rows, allowed)
        return self.model.generator.token_features(out), slots

    def token_scores(
        self, features: Float[Tensor, "M H"], tokens: Int64[Tensor, "M"]
    ) -> TokenScores:
        """log p(token) under GEN of one token a row: bounds, and exact ones on demand."""
        return TokenScores(self._vocabulary, features, tokens)

    def unread(self, active: Bool[Tensor, "C b"]) -> Candidates:
        """The hypotheses that stay as they are: those that are not active."""
        rows = torch.arange(self.log_p.shape[1], device=self.log_p.device).expand_as(self.words)
        none = torch.full_like(self.words, -1)
        log_p = self.log_p.masked_fill(active, -torch.inf)
        return Candidates(log_p, rows, self.pending, self.words, none, none)

    def keep(self, candidates: Candidates, choice: Int64[Tensor, "C kept"]) -> None:
        """The hypotheses become the chosen candidates (the beam may change its size)."""

        def chosen(values: Tensor) -> Tensor:
            return values.gather(1, choice)

        self.take(
            chosen(candidates.log_p),
            chosen(candidates.row),
            chosen(candidates.pending),
            chosen(candidates.words),
            chosen(candidates.node_slot).unsqueeze(2),
            chosen(candidates.token_slot),
        )

    def take(
        self,
        log_p: Float[Tensor, "C b"],
        parents: Int64[Tensor, "C b"],
        pending: Int64[Tensor, "C b"],
        words: Int64[Tensor, "C b"],
        node_slots: Int64[Tensor, "C b levels"],
        token_slot: Int64[Tensor, "C b"],
    ) -> None:
        """The hypotheses become continuations of `parents`.

        Args:
            node_slots: of nodes that have been read, in order; -1 after the last one.
            token_slot: of the token layers' state that wrote the pending token, or -1.
        """
        self._types.select(parents, node_slots)
        self._tokens.select(parents, token_slot.unsqueeze(2))
        # Slots grow with time, so that the largest is the last.
        newest = node_slots.amax(2)
        self.top = torch.where(newest >= 0, newest, self.top.gather(1, parents))
        self.log_p, self.pending, self.words = log_p, pending, words

    def rescale(self, total: Float[Tensor, "C"]) -> None:
        """The hypotheses of a context share this log of a mass; minus infinity: as they were."""
        change = (total - self.log_p.logsumexp(1)).masked_fill(total == -torch.inf, 0.0)
        self.log_p = self.log_p + change.unsqueeze(1)

    def write(
        self,
        tokens: Int64[Tensor, "C b"],
        log_p: Float[Tensor, "C b"],
        slots: Int64[Tensor, "C b"],
        where: Bool[Tensor, "C b"],
    ) -> None:
        """Some hypotheses, read by type and token layers, go on with a token each.

        Args:
            log_p: of all hypotheses from now on.
            slots: of the token layers' state, -1 outside of `where`.
        """
        rows = torch.arange(where.shape[1], device=where.device).expand_as(slots)
        self._tokens.select(rows, slots.unsqueeze(2))
        self.pending = torch.where(where, tokens, self.pending)
        self.words = self.words + where
        self.log_p = log_p

    def merge(self, group: Bool[Tensor, "C b"], kept: int) -> None:
        """Of a group of a context's hypotheses the best `kept` live on, with the weight of all."""
        of_group = self.log_p.masked_fill(~group, -torch.inf)
        best = of_group.topk(min(kept, group.shape[1]), dim=1).indices
        chosen = torch.zeros_like(group).scatter_(1, best, True) & group
        left = of_group.masked_fill(~chosen, -torch.inf)
        change = of_group.logsumexp(1, keepdim=True) - left.logsumexp(1, keepdim=True)
        alive = chosen | ~group
        self.log_p = torch.where(chosen, self.log_p + change, self.log_p)
        self.log_p = self.log_p.masked_fill(~alive, -torch.inf)
        self._types.drop_past(alive)
        self._tokens.drop_past(alive)

    def select_contexts(self, contexts: Int64[Tensor, "new"]) -> None:
        """The contexts become those of these numbers."""
        for name in ("log_p", "words", "pending", "top"):
            setattr(self, name, getattr(self, name).index_select(0, contexts))
        self._nodes.select_contexts(contexts)
        self._types.select_contexts(contexts)
        self._tokens.select_contexts(contexts)

    def compact(self) -> None:
        """Forgets nodes that are in no hypothesis' past, where that pays."""
        for context in self._tokens.needs_compaction():
            self._tokens.compact(context)
        for context in self._types.needs_compaction():
            size = self._types.sizes[context]
            old = self._types.compact(context)
            new = torch.zeros(size, dtype=torch.int64, device=old.device)
            new[old] = torch.arange(len(old), device=old.device)
            self._nodes.compact(context, old, new)
            self.top[context] = new[self.top[context]]

    def actions(self, context: int, hypothesis: int) -> list[int]:
        """The actions of a hypothesis: tokens and COMP, the pending one included."""
        past = self._types.past[context, hypothesis, : self._types.sizes[context]]
        kinds: np.ndarray = self._nodes.kind[context, : len(past)][past].cpu().numpy()
        read = [int(kind) for kind in kinds if kind != START]
        pending = int(self.pending[context, hypothesis])
        return read if pending == START else [*read, pending]
