"""What a search chooses from: continuations of hypotheses, and what the model says of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

COMP = -1
"""A pending action that joins the top two constituents; tokens are GEN actions."""
START = -2
"""The pending <bos> of an empty hypothesis."""


@dataclass(frozen=True)
class Candidates:
    """Continuations to choose from, (C, K) each."""

    log_p: Float[Tensor, "C K"]
    row: Int64[Tensor, "C K"]
    """The hypothesis that is continued."""
    pending: Int64[Tensor, "C K"]
    words: Int64[Tensor, "C K"]
    """Tokens written, the pending one included."""
    node_slot: Int64[Tensor, "C K"]
    """Where the node just read lies, -1 for a hypothesis that goes on unread."""
    token_slot: Int64[Tensor, "C K"]
    """Where the token layers' state lies that wrote the pending token, or -1."""

    @classmethod
    def joined(cls, parts: list[Candidates]) -> Candidates:
        """All of the parts' candidates, in order."""
        names = ("log_p", "row", "pending", "words", "node_slot", "token_slot")
        return cls(*(torch.cat([getattr(part, name) for part in parts], 1) for name in names))


@dataclass(frozen=True)
class Ahead:
    """How far hypotheses are read as if they went on with COMP."""

    comp_limit: Int64[Tensor, "C b"]
    """COMP is possible where the constituent on top of the stack starts after this token."""
    closed_start: Int64[Tensor, "C b"]
    """A constituent that starts here or before completes the text: it is not read."""
    most: int
    """Nodes that are read at once, unless more are pending."""


@dataclass(frozen=True)
class Reading:
    """What the model says after it has read the pending nodes of some hypotheses."""

    rows: Int64[Tensor, "C F"]
    """F = levels x hypotheses: first the pending nodes of all, then those one COMP further, ..."""
    valid: Bool[Tensor, "C F"]
    """False for hypotheses that only fill the table, or are not read so far ahead."""
    log_p: Float[Tensor, "C F"]
    """Of the hypotheses so far, float64, nats; minus infinity where not valid."""
    words: Int64[Tensor, "C F"]
    start: Int64[Tensor, "C F"]
    """First token of the constituent on top of the stack."""
    hidden: Float[Tensor, "R H"]
    """Outputs of the type layers, of the R valid ones in order."""
    gen_log_p: Float[Tensor, "C F"]
    """log p(GEN), float64."""
    comp_log_p: Float[Tensor, "C F"]
    slots: Int64[Tensor, "C F"]
    levels: int = 1

    def table(self, values: Shaped[Tensor, "M *rest"], where: Bool[Tensor, "C F"]) -> Tensor:
        """(C, F, *rest): values of the hypotheses `where`, in order; 0 elsewhere."""
        table = values.new_zeros(*where.shape, *values.shape[1:])
        table[where] = values
        return table

    def comp(self, allowed: Bool[Tensor, "C F"]) -> Candidates:
        """The hypotheses that go on with COMP."""
        log_p = (self.log_p + self.comp_log_p).masked_fill(~allowed, -torch.inf)
        none = torch.full_like(self.rows, -1)
        pending = torch.full_like(self.rows, COMP)
        return Candidates(log_p, self.rows, pending, self.words, self.slots, none)
