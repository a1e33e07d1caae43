"""The state of a search: C contexts with b hypotheses each, as tensors on the model's device.

A hypothesis is a sequence of actions. Its last action is *pending*: it has been chosen and paid
for, but the model has not read its node yet. `Beam.read` lets the model read pending nodes,
which gives the log probabilities of the next action; `Beam.keep` puts chosen continuations in the
place of the hypotheses.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gpst.layers.composition import plain_norm
from gpst.model.gpst import GPSTModel
from gpst.search.candidates import COMP, START, Candidates, Reading
from gpst.search.history import History
from gpst.search.vocabulary import TokenScores, Vocabulary


class Beam:
    """See the module. All hypotheses start empty; the first of each context is the only live one.

    Args:
        model: in evaluation mode.
        num_contexts: C.
        beam: b.
    """

    def __init__(self, model: GPSTModel, num_contexts: int, beam: int):
        self.model = model
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
        # The nodes, in the slots of the type layers' history.
        self._vectors = weight.new_zeros(num_contexts, 1, model.config.composition.dim)
        self._integers = torch.zeros(4, num_contexts, 1, dtype=torch.int64, device=device)

    @property
    def alive(self) -> Bool[Tensor, "C b"]:
        """Hypotheses that have a probability."""
        return self.log_p > -torch.inf

    @property
    def _start(self) -> Int64[Tensor, "C capacity"]:
        return self._integers[0]

    @property
    def _below(self) -> Int64[Tensor, "C capacity"]:
        """The node under this one on the stack."""
        return self._integers[1]

    @property
    def _kind(self) -> Int64[Tensor, "C capacity"]:
        """Token, COMP or START."""
        return self._integers[2]

    @property
    def _last_word(self) -> Int64[Tensor, "C capacity"]:
        """The last token of the node."""
        return self._integers[3]

    def pending_start(self) -> Int64[Tensor, "C b"]:
        """First token of the constituent that the pending action puts on the stack."""
        joined = self._start.gather(1, self._below.gather(1, self.top))
        return torch.where(self.pending == COMP, joined, (self.words - 1).clamp_min(0))

    def read(self, active: Bool[Tensor, "C b"]) -> Reading:
        """Lets the model read the pending nodes of the active hypotheses (at least one)."""
        width = int(active.sum(1).max())
        rows = active.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
        valid = active.gather(1, rows)
        # Dead hypotheses only fill the table; their counts must not point outside of any.
        words = self.words.gather(1, rows).masked_fill(~valid, 0)
        pending = self.pending.gather(1, rows)
        top = self.top.gather(1, rows)
        node, vector, start, below, last = self._nodes(pending, words, top, valid)
        generator = self.model.generator
        hidden, slots = self._types.step(generator.input_at(node, words[valid]), rows, valid)
        self._store(slots, vector, valid, torch.stack((start, below, pending, last)))
        self.top.scatter_(1, rows, torch.where(valid, slots, top))
        log_p = self.log_p.gather(1, rows).masked_fill(~valid, -torch.inf)
        logits = generator.type_logits(hidden)
        types = logits.new_zeros(*valid.shape, 2, dtype=torch.float64)
        types[valid] = F.log_softmax(logits, -1).to(torch.float64)
        return Reading(
            rows, valid, log_p, words, start, hidden, types[..., 0], types[..., 1], slots
        )

    def _nodes(
        self, pending: Int64[Tensor, "C F"], words: Tensor, top: Tensor, valid: Bool[Tensor, "C F"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of pending nodes: generator inputs (R, H) and constituent vectors (R, D) of the valid
        ones, starts, nodes below and last tokens (C, F)."""
        model = self.model
        is_comp = (pending == COMP) & valid
        ups = is_comp[valid]
        token = torch.where(pending >= 0, pending, model.config.bos_token_id)[valid]
        node = model.embedding(token)
        vector = node.new_empty(len(node), self._vectors.shape[2])
        vector[~ups] = model.scaling.down(node[~ups])
        start, below, last = (words - 1).clamp_min(0), top, pending
        if bool(ups.any()):
            left = self._below.gather(1, top)
            vector[ups], node[ups] = self._compose(left, top, is_comp)
            start = torch.where(is_comp, self._start.gather(1, left), start)
            below = torch.where(is_comp, self._below.gather(1, left), below)
            last = torch.where(is_comp, self._last_word.gather(1, top), last)
            if model.config.last_word:
                node[ups] += model.embedding(last[is_comp])
        return node, vector, start, below, last

    def _compose(
        self, left: Int64[Tensor, "C F"], right: Int64[Tensor, "C F"], where: Bool[Tensor, "C F"]
    ) -> tuple[Float[Tensor, "M D"], Float[Tensor, "M H"]]:
        """f_alpha of two nodes, as the inside pass gives it for a cell with one split."""
        context = where.nonzero()[:, 0]
        children = [self._vectors[context, child[where]] for child in (left, right)]
        mixed = plain_norm(self.model.composition.compose(*children))
        replaced = self.model.generator.comp_embedding
        up = self.model.scaling.up(mixed)
        return mixed, up if replaced is None else replaced.expand_as(up)

    def _store(
        self,
        slots: Int64[Tensor, "C F"],
        vector: Float[Tensor, "R D"],
        valid: Bool[Tensor, "C F"],
        integers: Int64[Tensor, "4 C F"],
    ) -> None:
        more = self._types.capacity - self._vectors.shape[1]
        if more > 0:
            self._vectors = F.pad(self._vectors, (0, 0, 0, more))
            self._integers = F.pad(self._integers, (0, more))
        context, slot = valid.nonzero()[:, 0], slots[valid]
        self._vectors[context, slot] = vector
        self._integers[:, context, slot] = integers[:, valid]

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

        parents = chosen(candidates.row)
        self._types.select(parents, chosen(candidates.node_slot))
        self._tokens.select(parents, chosen(candidates.token_slot))
        self.top = self.top.gather(1, parents)
        self.log_p = chosen(candidates.log_p)
        self.pending = chosen(candidates.pending)
        self.words = chosen(candidates.words)

    def keep_best(self, candidates: Candidates, beam: int) -> None:
        """Keeps the `beam` most probable candidates, best first."""
        size = min(beam, candidates.log_p.shape[1])
        self.keep(candidates, candidates.log_p.topk(size, dim=1).indices)

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
        self._tokens.select(rows, slots)
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
        for name in ("log_p", "words", "pending", "top", "_vectors"):
            setattr(self, name, getattr(self, name).index_select(0, contexts))
        self._integers = self._integers.index_select(1, contexts)
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
            vectors, integers = self._vectors[context], self._integers[:, context]
            vectors[: len(old)] = vectors[old]
            start, below, kind, last = integers[:, old]
            # What lies below a node is in the same pasts.
            integers[:, : len(old)] = torch.stack((start, new[below], kind, last))
            self.top[context] = new[self.top[context]]

    def actions(self, context: int, hypothesis: int) -> list[int]:
        """The actions of a hypothesis: tokens and COMP, the pending one included."""
        past = self._types.past[context, hypothesis, : self._types.sizes[context]]
        kinds: np.ndarray = self._kind[context, : len(past)][past].cpu().numpy()
        read = [int(kind) for kind in kinds if kind != START]
        pending = int(self.pending[context, hypothesis])
        return read if pending == START else [*read, pending]
