"""Losses of the labelled part of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_model import make_contexts, make_model

from gpst.batch import ContextBatch


def test_losses_of_parts_add_up_to_those_of_the_whole():
    model, contexts = make_model(), make_contexts([[5, 1, 9], [3, 4]])
    batch = ContextBatch.from_sentences(contexts)
    of_sentence = np.repeat([True, False, True, False, True], batch.sentence_lengths)
    parts = [batch.with_labels(of_sentence), batch.with_labels(~of_sentence)]
    whole = model(batch).losses
    first, second = (model(part).losses for part in parts)
    totals = {name: first[name].sum + second[name].sum for name in whole}
    for name, term in whole.items():
        assert totals[name].item() == pytest.approx(term.sum.item(), rel=1e-9, abs=1e-9), name
    ours = torch.autograd.grad(sum(totals.values()), [*model.parameters()], allow_unused=True)
    total = sum(term.sum for term in whole.values())
    theirs = torch.autograd.grad(total, [*model.parameters()], allow_unused=True)
    for (name, _), mine, gradient in zip(model.named_parameters(), ours, theirs, strict=True):
        assert (mine is None) == (gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(mine, gradient, msg=name)
    for unit in ("tokens", "actions", "splits", "sentences"):
        counted = [getattr(part.counts, unit) for part in parts]
        assert sum(counted) == getattr(batch.counts, unit)
        assert min(counted) > 0
    # One token of a sentence of five: its own losses, and those of the sentence's tree.
    alone = np.zeros(batch.num_tokens, bool)
    alone[2] = True
    one = batch.with_labels(alone)
    assert (one.counts.tokens, one.counts.splits, one.counts.actions) == (1, 4, 5)
    sentence = batch.with_labels(np.arange(batch.num_tokens) < 5)
    losses, of_tree = model(one).losses, model(sentence).losses
    assert losses["parser"].sum.item() == pytest.approx(of_tree["parser"].sum.item())
    assert losses["token"].sum.item() < of_tree["token"].sum.item()
