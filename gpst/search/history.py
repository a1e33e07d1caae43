"""Keys and values of a family of hypotheses, found by ancestry instead of being copied.

The hypotheses of a context share most of their past, so every node's keys and values are kept once,
in a slot of its context, and each hypothesis has a bit per slot that says whether the node is in
its past. Keeping, dropping and doubling hypotheses moves bits only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gpst.layers import CausalBlock, CausalStack

_ROOM = 64
_FULL = 0.8
"""Share of valid inputs from which on a CPU attends to all contexts at once."""


class History:
    """The past of C x b hypotheses in one stack of blocks; slots are in order of time.

    Args:
        stack: the blocks.
        num_contexts: C.
        beam: b, hypotheses of a context.
        like: gives the type and device of keys and values.
    """

    def __init__(self, stack: CausalStack, num_contexts: int, beam: int, like: Tensor):
        self.blocks = [block for block in stack.blocks if isinstance(block, CausalBlock)]
        self.size = 0
        """Slots in use."""
        self.past: Bool[Tensor, "C b capacity"] = torch.zeros(
            num_contexts, beam, _ROOM, dtype=torch.bool, device=like.device
        )
        shape = (num_contexts, stack.num_heads, _ROOM, like.shape[-1] // stack.num_heads)
        self.keys = [like.new_zeros(shape) for _ in self.blocks]
        self.values = [like.new_zeros(shape) for _ in self.blocks]
        self._kept = 0

    def step(
        self, x: Float[Tensor, "R D"], rows: Int64[Tensor, "C F"], valid: Bool[Tensor, "C F"]
    ) -> tuple[Float[Tensor, "R D"], int]:
        """Outputs for one more input of each of the hypotheses `rows`, and the first new slot.

        Input f of a context lies in slot first + f; it is in nobody's past until `select`.

        Args:
            x: of the R valid hypotheses, in order; only attention works on padded rows.
        """
        first, width = self.size, rows.shape[1]
        self._reserve(first + width)
        seen = _take(self.past[:, :, :first], rows)
        own = torch.eye(width, dtype=torch.bool, device=x.device).expand(len(rows), width, width)
        hidden = torch.cat((seen, own), 2).logical_not_()
        mask = torch.zeros(hidden.shape, dtype=x.dtype, device=x.device)
        mask = mask.masked_fill_(hidden, -torch.inf).unsqueeze(1)
        places = valid.flatten().nonzero().squeeze(1)
        counts = None
        if (
            x.device.type == "cpu"
            and 0 < len(places) < _FULL * valid.numel()
            and bool((valid[:, 1:] <= valid[:, :-1]).all())
        ):
            counts = valid.sum(1).tolist()
        for block, keys, values in zip(self.blocks, self.keys, self.values, strict=True):
            x = block.step(x, keys, values, first, mask, places, counts)
        self.size = first + width
        return x, first

    def select(self, parents: Int64[Tensor, "C b"], slots: Int64[Tensor, "C b"]) -> None:
        """Hypothesis h becomes the former parents[h], with slots[h] (if not -1) in its past."""
        past = _take(self.past[:, :, : self.size], parents)
        if self.size:
            at = slots.clamp_min(0).unsqueeze(2)
            past.scatter_(2, at, past.gather(2, at) | (slots >= 0).unsqueeze(2))
        if past.shape[1] == self.past.shape[1]:
            self.past[:, :, : self.size] = past
        else:
            self.past = F.pad(past, (0, self.past.shape[2] - self.size))

    def forget(self, kept: Bool[Tensor, "C b"]) -> None:
        """Hypotheses that are not kept have no past any more."""
        self.past &= kept.unsqueeze(2)

    def wants_compaction(self) -> bool:
        """Whether slots outside every past may be so many that dropping them pays."""
        return self.size > 1.5 * self._kept + 2 * self.past.shape[1]

    def compact(self) -> Int64[Tensor, "C kept"]:
        """Drops the slots that are in nobody's past, and returns where the others were.

        A context with fewer slots than the fullest one gets some dropped ones at the end, which
        stay in nobody's past.
        """
        alive = self.past[:, :, : self.size].any(1)
        kept = int(alive.sum(1).max())
        # A stable sort keeps the order of time.
        old = alive.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :kept]
        wide = old[:, None, :, None]
        for buffers in (self.keys, self.values):
            for buffer in buffers:
                shape = (-1, buffer.shape[1], -1, buffer.shape[3])
                buffer[:, :, :kept] = buffer.gather(2, wide.expand(shape))
        past = self.past.gather(2, old.unsqueeze(1).expand(-1, self.past.shape[1], -1))
        self.past.zero_()
        self.past[:, :, :kept] = past
        self.size = self._kept = kept
        return old

    def _reserve(self, size: int) -> None:
        capacity = self.past.shape[2]
        if size <= capacity:
            return
        more = max(size, 2 * capacity) - capacity
        self.past = F.pad(self.past, (0, more))
        self.keys = [F.pad(buffer, (0, 0, 0, more)) for buffer in self.keys]
        self.values = [F.pad(buffer, (0, 0, 0, more)) for buffer in self.values]


def _take(table: Tensor, rows: Int64[Tensor, "C F"]) -> Tensor:
    """(C, F, ...): table[c, rows[c, f]]; copies whole rows."""
    offset = torch.arange(len(table), device=table.device).unsqueeze(1) * table.shape[1]
    flat = table.flatten(0, 1).index_select(0, (rows + offset).flatten())
    return flat.view(*rows.shape, *table.shape[2:])
