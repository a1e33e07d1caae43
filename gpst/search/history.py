"""Keys and values of a family of hypotheses, found by ancestry instead of being copied.

The hypotheses of a context share most of their past, so every node's keys and values are kept once,
in a slot of its context, and each hypothesis has a bit per slot that says whether the node is in
its past. Keeping, dropping and doubling hypotheses moves bits only. Contexts fill their slots
independently: each attends to as many as it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gpst.layers.transformer import CausalBlock, CausalStack

_ROOM = 64
_PER_CONTEXT = ("cpu",)
"""Devices on which every context attends by itself; elsewhere all do at once, in a padded table."""


@dataclass(frozen=True)
class _Inputs:
    """One more input of R hypotheses, in the order of their contexts."""

    places: Int64[Tensor, "R"]
    """Of their slots in the flat table of C x capacity."""
    mask: Float[Tensor, "R seen"]
    """Added to the attention's logits: 0 for an input's past and itself, else minus infinity."""
    counts: list[int]
    """Inputs of each context."""
    seen: list[int]
    """Slots of each context, those of the inputs included."""
    context: Int64[Tensor, "R"]
    rank: Int64[Tensor, "R"]
    """Number of an input among those of its context."""

    def attend(
        self, heads: Float[Tensor, "R 3 h d"], cache: Float[Tensor, "C capacity 2 h d"]
    ) -> Float[Tensor, "R h d"]:
        """Stores keys and values, and attends with the queries."""
        cache.flatten(0, 1).index_copy_(0, self.places, heads[:, 1:])
        query = heads[:, 0]
        if len(query) == 0:
            return query
        per_context = query.device.type in _PER_CONTEXT
        return self._per_context(query, cache) if per_context else self._padded(query, cache)

    def _per_context(self, query: Tensor, cache: Tensor) -> Tensor:
        parts, first = [], 0
        for context_cache, count, seen in zip(cache, self.counts, self.seen, strict=True):
            if count == 0:
                continue
            last = first + count
            keys, values = context_cache[:seen].permute(1, 2, 0, 3).unsqueeze(1)
            part = F.scaled_dot_product_attention(
                query[first:last].transpose(0, 1).unsqueeze(0),
                keys,
                values,
                attn_mask=self.mask[first:last, :seen],
            )
            parts.append(part[0].transpose(0, 1))
            first = last
        return torch.cat(parts)

    def _padded(self, query: Tensor, cache: Tensor) -> Tensor:
        at = (self.context, self.rank)
        shape = (len(cache), max(self.counts))
        table = query.new_zeros(*shape, *query.shape[1:])
        table[at] = query
        # Rows that only fill the table see everything: a row that sees nothing would be NaN.
        mask = self.mask.new_zeros(*shape, self.mask.shape[1])
        mask[at] = self.mask
        keys, values = cache[:, : self.mask.shape[1]].permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            table.transpose(1, 2), keys, values, attn_mask=mask.unsqueeze(1)
        )
        return attended.transpose(1, 2)[at]


class History:
    """The past of C x b hypotheses in one stack of blocks; a context's slots are in order of time.

    Args:
        stack: the blocks.
        num_contexts: C.
        beam: b, hypotheses of a context.
        like: gives the type and device of keys and values.
    """

    def __init__(self, stack: CausalStack, num_contexts: int, beam: int, like: Tensor):
        self.blocks = [block for block in stack.blocks if isinstance(block, CausalBlock)]
        self.sizes = [0] * num_contexts
        """Slots in use, for each context."""
        self.past: Bool[Tensor, "C b capacity"] = torch.zeros(
            num_contexts, beam, _ROOM, dtype=torch.bool, device=like.device
        )
        width = like.shape[-1] // stack.num_heads
        shape = (num_contexts, _ROOM, 2, stack.num_heads, width)
        self.caches = [like.new_zeros(shape) for _ in self.blocks]
        """Keys and values of each block, (C, capacity, 2, h, d)."""
        self._kept = [0] * num_contexts

    @property
    def capacity(self) -> int:
        return self.past.shape[2]

    def step(
        self,
        x: Float[Tensor, "R D"],
        rows: Int64[Tensor, "C F"],
        valid: Bool[Tensor, "C F"],
        levels: int = 1,
    ) -> tuple[Float[Tensor, "R D"], Int64[Tensor, "C F"]]:
        """Outputs for more inputs of the hypotheses `rows`, and the inputs' slots.

        An input is in nobody's past until `select`; the slot of one that is not valid is -1.

        Args:
            x: of the R valid inputs, in order.
            levels: F counts levels times hypotheses: an input follows those of its hypothesis in
                the levels before.
        """
        counts: list[int] = valid.sum(1).tolist()
        seen = [size + count for size, count in zip(self.sizes, counts, strict=True)]
        self._reserve(max(seen))
        context, column = valid.nonzero().unbind(1)
        rank = (valid.cumsum(1) - 1)[context, column]
        slot = torch.tensor(self.sizes, device=x.device)[context] + rank
        visible = self.past[context, rows[context, column], : max(seen)]
        slots = torch.full_like(rows, -1)
        slots[context, column] = slot
        visible.scatter_(1, _path(slots, levels, context, column), True)
        mask = x.new_zeros(visible.shape).masked_fill_(visible.logical_not_(), -torch.inf)
        places = context * self.capacity + slot
        inputs = _Inputs(places, mask, counts, seen, context, rank)
        for block, cache in zip(self.blocks, self.caches, strict=True):
            x = block.step(x, lambda heads, block_cache=cache: inputs.attend(heads, block_cache))
        self.sizes = seen
        return x, slots

    def select(self, parents: Int64[Tensor, "C b"], slots: Int64[Tensor, "C b n"]) -> None:
        """Hypothesis h becomes the former parents[h], with slots[h] (but -1) in its past."""
        size = max(self.sizes)
        past = F.pad(_take(self.past[:, :, :size], parents), (0, 1))
        past = past.scatter_(2, torch.where(slots < 0, size, slots), True)[:, :, :size]
        if past.shape[1] == self.past.shape[1]:
            self.past[:, :, :size] = past
        else:
            self.past = F.pad(past, (0, self.capacity - size))

    def select_contexts(self, contexts: Int64[Tensor, "new"]) -> None:
        """The contexts become those of these numbers."""
        numbers: list[int] = contexts.tolist()
        self.sizes = [self.sizes[number] for number in numbers]
        self._kept = [self._kept[number] for number in numbers]
        self.past = self.past.index_select(0, contexts)
        self.caches = [cache.index_select(0, contexts) for cache in self.caches]

    def drop_past(self, alive: Bool[Tensor, "C b"]) -> None:
        """Hypotheses that are not alive have no past any more."""
        self.past &= alive.unsqueeze(2)

    def needs_compaction(self) -> list[int]:
        """Contexts of which so many slots may be outside every past that dropping them pays."""
        spare = 2 * self.past.shape[1]
        sizes = zip(self.sizes, self._kept, strict=True)
        return [c for c, (size, kept) in enumerate(sizes) if size > 1.5 * kept + spare]

    def compact(self, context: int) -> Int64[Tensor, "kept"]:
        """Drops the slots that are in nobody's past, and returns where the others were."""
        size = self.sizes[context]
        past = self.past[context, :, :size]
        old = past.any(0).nonzero().squeeze(1)
        kept = len(old)
        for cache in self.caches:
            cache[context, :kept] = cache[context].index_select(0, old)
        moved = past.index_select(1, old)
        past.zero_()
        past[:, :kept] = moved
        self.sizes[context] = self._kept[context] = kept
        return old

    def _reserve(self, size: int) -> None:
        if size <= self.capacity:
            return
        more = max(size, 2 * self.capacity) - self.capacity
        self.past = F.pad(self.past, (0, more))
        self.caches = [F.pad(cache, (0, 0, 0, 0, 0, 0, 0, more)) for cache in self.caches]


def _path(
    slots: Int64[Tensor, "C F"],
    levels: int,
    context: Int64[Tensor, "R"],
    column: Int64[Tensor, "R"],
) -> Int64[Tensor, "R levels"]:
    """Slots of an input and of those before it on its hypothesis' way up."""
    own = slots[context, column].unsqueeze(1)
    if levels == 1:
        return own
    width = slots.shape[1] // levels
    way = slots.view(-1, levels, width)[context, :, column % width]
    before = torch.arange(levels, device=slots.device) < (column // width).unsqueeze(1)
    return torch.where(before, way, own)


def _take(table: Tensor, rows: Int64[Tensor, "C F"]) -> Tensor:
    """(C, F, ...): table[c, rows[c, f]]; copies whole rows."""
    offset = torch.arange(len(table), device=table.device).unsqueeze(1) * table.shape[1]
    flat = table.flatten(0, 1).index_select(0, (rows + offset).flatten())
    return flat.view(*rows.shape, *table.shape[2:])
