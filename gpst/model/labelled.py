"""Losses of a part of a batch: of the tokens that have a label and of the sentences around them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from gpst.batch import ContextBatch, on_device
from gpst.chart.decode import InducedTrees
from gpst.chart.layout import ChartLayout


@dataclass(frozen=True)
class LabelledPart:
    """Picks out of all tokens, actions and sentences those that have losses."""

    trees: InducedTrees
    """With the nodes of sentences that have losses marked alone."""
    _tokens: Int64[Tensor, "_"] | None = None
    _actions: Int64[Tensor, "_"] | None = None
    _sentences: Int64[Tensor, "_"] | None = None

    @classmethod
    def of(cls, batch: ContextBatch, layout: ChartLayout, induced: InducedTrees) -> LabelledPart:
        """GEN counts with its token, COMP with its sentence."""
        if batch.labelled is None:
            return cls(induced)
        device = batch.tokens.device
        of_sentence = batch.labelled_sentences
        of_token = np.repeat(of_sentence, batch.sentence_lengths)
        # A cell lies in the sentence of its first token.
        cells = on_device(of_token[layout.spans[:, 0]], device)
        by_cell = cells.clone()
        by_cell[: layout.num_tokens] = on_device(batch.labelled, device)
        return cls(
            replace(induced, marked=induced.marked * cells),
            on_device(np.flatnonzero(batch.labelled), device),
            by_cell[induced.nodes].nonzero().squeeze(1),
            on_device(np.flatnonzero(of_sentence), device),
        )

    def tokens(self, values: Tensor) -> Tensor:
        """Those of the labelled tokens."""
        return _pick(values, self._tokens)

    def actions(self, values: Tensor) -> Tensor:
        """Those of the labelled actions."""
        return _pick(values, self._actions)

    def sentences(self, values: Tensor) -> Tensor:
        """Those of the sentences with a labelled token."""
        return _pick(values, self._sentences)


def _pick(values: Tensor, numbers: Tensor | None) -> Tensor:
    return values if numbers is None else values.index_select(0, numbers)
