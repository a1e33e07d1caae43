"""The nodes that a search has read: their vectors, and how they lie on their stacks.

A hypothesis' next nodes are known before the model says anything of them: its pending token or
constituent, then the constituents that further COMP would make. These *chains* are composed level
by level, all hypotheses together, and can then be read at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gpst.model.gpst import GPSTModel
from gpst.search.candidates import COMP
from gpst.search.compose import Composer


@dataclass(frozen=True)
class Chains:
    """Nodes to read, in L levels; a node is the right child of that in the next level."""

    exists: Bool[Tensor, "C L F"]
    left: Int64[Tensor, "C L F"]
    """Slot of the left child; of tokens it stands for nothing."""
    right: Int64[Tensor, "C F"]
    """Slot of the right child of the first level's constituents."""
    integers: Int64[Tensor, "4 C L F"]
    """As `Nodes` keeps them."""


class Nodes:
    """Nodes of C contexts, in the slots of the type layers' history.

    Args:
        model: in evaluation mode.
        num_contexts: C.
    """

    def __init__(self, model: GPSTModel, num_contexts: int):
        self._model, self._compose = model, Composer(model.composition)
        weight = model.embedding.weight
        self._vectors = weight.new_zeros(num_contexts, 1, model.config.composition.dim)
        self._integers = torch.zeros(4, num_contexts, 1, dtype=torch.int64, device=weight.device)

    @property
    def start(self) -> Int64[Tensor, "C capacity"]:
        """First token of the node."""
        return self._integers[0]

    @property
    def below(self) -> Int64[Tensor, "C capacity"]:
        """The node under this one on the stack."""
        return self._integers[1]

    @property
    def kind(self) -> Int64[Tensor, "C capacity"]:
        """Token, COMP or START."""
        return self._integers[2]

    @property
    def _last_word(self) -> Int64[Tensor, "C capacity"]:
        """The last token of the node."""
        return self._integers[3]

    def chains(
        self,
        pending: Int64[Tensor, "C F"],
        top: Int64[Tensor, "C F"],
        words: Int64[Tensor, "C F"],
        valid: Bool[Tensor, "C F"],
    ) -> Chains:
        """The nodes of pending actions."""
        is_comp = (pending == COMP) & valid
        left = self.below.gather(1, top)
        right = torch.where(is_comp, top, -1)
        start = torch.where(is_comp, self.start.gather(1, left), (words - 1).clamp_min(0))
        below = torch.where(is_comp, self.below.gather(1, left), top)
        last = torch.where(is_comp, self._last_word.gather(1, top), pending)
        integers = torch.stack((start, below, pending, last))
        return Chains(valid.unsqueeze(1), left.unsqueeze(1), right, integers.unsqueeze(2))

    def longer(
        self,
        chains: Chains,
        comp_limit: Int64[Tensor, "C F"],
        closed_start: Int64[Tensor, "C F"],
        most: int,
    ) -> Chains:
        """The nodes that COMP would make after the first, as long as there are at most `most`."""
        exist, lefts = [chains.exists[:, 0]], [chains.left[:, 0]]
        integers = [chains.integers[:, :, 0]]
        start, below, kind, last = integers[0]
        kind = torch.full_like(kind, COMP)
        count = most - int(exist[0].sum())
        while True:
            left = below
            possible = exist[-1] & (start > comp_limit)
            start = self.start.gather(1, left)
            possible &= start > closed_start
            count -= (number := int(possible.sum()))
            if count < 0 or number == 0:
                break
            below = self.below.gather(1, left)
            exist.append(possible)
            lefts.append(left)
            integers.append(torch.stack((start, below, kind, last)))
        return Chains(
            torch.stack(exist, 1), torch.stack(lefts, 1), chains.right, torch.stack(integers, 2)
        )

    def inputs(self, chains: Chains) -> tuple[Float[Tensor, "R H"], Float[Tensor, "R D"]]:
        """Of the nodes that exist: the generator's inputs without positions, and the vectors."""
        model, exists = self._model, chains.exists
        _, _, kind, last = chains.integers
        token = torch.where(kind >= 0, kind, model.config.bos_token_id)[exists]
        ups = (kind == COMP)[exists]
        if not bool(ups.any()):
            node = model.embedding(token)
            return node, model.scaling.down(node)
        node = self._vectors.new_empty(len(ups), model.config.hidden_dim)
        node[~ups] = words = model.embedding(token[~ups])
        vectors = self._composed(chains, model.scaling.down(words))
        up = model.scaling.up(vectors[ups])
        replaced = model.generator.comp_embedding
        node[ups] = up if replaced is None else replaced.expand_as(up)
        if model.config.last_word:
            node[ups] += model.embedding(last[exists][ups])
        return node, vectors

    def _composed(self, chains: Chains, words: Float[Tensor, "W D"]) -> Float[Tensor, "R D"]:
        """Vectors of the nodes that exist; args: words: those of tokens."""
        (contexts, levels, width), dim = chains.exists.shape, self._vectors.shape[2]
        known = self._vectors.flatten(0, 1)
        offset = torch.arange(contexts, device=known.device).unsqueeze(1) * self._vectors.shape[1]
        is_comp = chains.integers[2] == COMP
        composed = (chains.exists & is_comp).transpose(0, 1).flatten(1)
        counts: list[int] = composed.sum(1).tolist()
        lefts = (chains.left + offset.unsqueeze(2)).transpose(0, 1).flatten(1)[composed]
        table = known.new_zeros(levels, contexts * width, dim)
        table[0][(chains.exists & ~is_comp)[:, 0].flatten()] = words
        places, lefts = composed.nonzero()[:, 1].split(counts), known[lefts].split(counts)
        for level, (at, left) in enumerate(zip(places, lefts, strict=True)):
            if level:
                right = table[level - 1].index_select(0, at)
            else:
                right = known[(chains.right + offset).flatten().index_select(0, at)]
            if len(at):
                table[level].index_copy_(0, at, self._compose(left, right))
        by_context = table.view(levels, contexts, width, dim).transpose(0, 1)
        return by_context[chains.exists]

    def store(
        self,
        slots: Int64[Tensor, "C N"],
        vectors: Float[Tensor, "R D"],
        chains: Chains,
        capacity: int,
    ) -> None:
        """Keeps nodes in their slots, N being levels times hypotheses."""
        more = capacity - self._vectors.shape[1]
        if more > 0:
            self._vectors = F.pad(self._vectors, (0, 0, 0, more))
            self._integers = F.pad(self._integers, (0, more))
        valid = chains.exists.flatten(1)
        context, slot = valid.nonzero()[:, 0], slots[valid]
        self._vectors[context, slot] = vectors
        self._integers[:, context, slot] = chains.integers.flatten(2)[:, valid]

    def select_contexts(self, contexts: Int64[Tensor, "new"]) -> None:
        """The contexts become those of these numbers."""
        self._vectors = self._vectors.index_select(0, contexts)
        self._integers = self._integers.index_select(1, contexts)

    def compact(self, context: int, old: Int64[Tensor, "kept"], new: Int64[Tensor, "n"]) -> None:
        """Args: old: slots that are kept, in order. new: where each of the slots goes."""
        vectors, integers = self._vectors[context], self._integers[:, context]
        vectors[: len(old)] = vectors[old]
        start, below, kind, last = integers[:, old]
        # What lies below a node is in the same pasts.
        integers[:, : len(old)] = torch.stack((start, new[below], kind, last))
