"""Given texts as tables: which action is possible after how many tokens.

Whether GEN or COMP is possible depends only on the number of tokens written and on where the
constituent on top of the stack starts:

    GEN   if start <= gen_limit[words]: after a sentence or an atom that is one constituent
    COMP  if start > comp_limit[words]: the sentence, or an open atom, has two constituents
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

Context = Sequence[Sequence[int]]
"""A context's sentences, each a list of token ids."""
InsideWord = Sequence[Sequence[bool]]
"""For each sentence, whether the boundary after a token lies inside an atom."""


@dataclass(frozen=True)
class TextTables:
    """C contexts of up to N tokens; (C, N + 1) tables over the number of tokens written."""

    lengths: Int64[Tensor, "C"]
    """Tokens of each context."""
    next_token: Int64[Tensor, "C words"]
    gen_limit: Int64[Tensor, "C words"]
    comp_limit: Int64[Tensor, "C words"]
    closed_start: Int64[Tensor, "C"]
    """First token of the last sentence: a hypothesis is complete when its top starts there."""

    @classmethod
    def of(
        cls,
        contexts: Sequence[Context],
        inside_word: Sequence[InsideWord] | None,
        max_context_tokens: int,
        device: torch.device,
    ) -> TextTables:
        """
        Args:
            inside_word: atoms, which must become constituents; none by default.
        Raises:
            ValueError: no context, an empty one or one that is too long; atoms that do not fit.
        """
        lengths = check_contexts(contexts, max_context_tokens)
        size = max(lengths) + 1
        tables = np.zeros((3, len(contexts), size), np.int64)
        tables[1] = -1
        for number, context in enumerate(contexts):
            own = None if inside_word is None else inside_word[number]
            tables[:, number, : lengths[number] + 1] = _tables(context, own)
        starts = [
            length - len(context[-1]) for length, context in zip(lengths, contexts, strict=True)
        ]
        next_token, gen_limit, comp_limit = torch.from_numpy(tables).to(device)
        moved = torch.tensor([lengths, starts], device=device)
        return cls(moved[0], next_token, gen_limit, comp_limit, moved[1])


def check_contexts(contexts: Sequence[Context], limit: int, *, prompts: bool = False) -> list[int]:
    """Tokens of each context.

    Args:
        prompts: contexts may be empty; their sentences may not.
    Raises:
        ValueError: no context, an empty one or one of more tokens than the limit.
    """
    if not contexts:
        raise ValueError("a search needs at least one context")
    return [
        _checked_length(context, limit) if context or not prompts else 0 for context in contexts
    ]


def _checked_length(context: Context, limit: int) -> int:
    if len(context) == 0 or min(len(sentence) for sentence in context) == 0:
        raise ValueError("every context needs a sentence and every sentence a token")
    length = sum(len(sentence) for sentence in context)
    if length > limit:
        raise ValueError(
            f"a context has {length} tokens, but the model takes {limit} (max_context_tokens)"
        )
    return length


def _tables(context: Context, inside_word: InsideWord | None) -> np.ndarray:
    """(3, n + 1): next token, limit of GEN, limit of COMP, after 0 .. n tokens."""
    tokens = [token for sentence in context for token in sentence]
    gen, comp = [0], [0]
    start = 0
    for number, sentence in enumerate(context):
        joined = [False] * len(sentence) if inside_word is None else list(inside_word[number])
        if len(joined) != len(sentence) or joined[-1]:
            raise ValueError(
                f"a sentence of {len(sentence)} tokens has atoms for {len(joined)}, "
                "or one that does not end with it"
            )
        atom = start
        for offset, inside in enumerate(joined):
            words = start + offset + 1
            last = offset == len(sentence) - 1
            gen.append(words if inside else start if last else atom)
            comp.append(atom if inside else start)
            atom = atom if inside else words
        start += len(sentence)
    gen[-1] = -1
    return np.array([[*tokens, 0], gen, comp], np.int64)
