"""With a sentence beam, what is dropped leaves its weight to what is kept: a language model."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gpst.search.parse import search_text


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_probabilities_of_all_texts_sum_to_at_most_one(tiny, beam):
    model = tiny()
    vocabulary = range(model.config.vocab_size)
    contexts = [[[a, b], [c]] for a, b, c in product(vocabulary, repeat=3)]
    bounds = search_text(model, contexts, beam=beam)
    found = search_text(model, contexts, beam=beam, sentence_beam=1)
    prefixes = np.array([result.prefix_log_p for result in found])
    for length in (1, 2, 3):
        # Each prefix stands once for every text that goes on from it.
        repeats = len(vocabulary) ** (3 - length)
        total = np.exp(prefixes[:, length - 1]).sum() / repeats
        assert total <= 1 + 1e-9
        assert total > 0.05  # an untrained model wastes much on impossible actions
    whole = np.array([result.prefix_log_p[-1] for result in bounds])
    # No hypothesis is lost without an heir, so that this is no worse than the bound on the whole.
    assert (prefixes[:, -1].mean()) >= whole.mean() - 1e-9


def test_a_narrow_beam_loses_the_mass_that_histories_keep(tiny):
    model, rng = tiny(), np.random.default_rng(0)
    context = [rng.integers(0, model.config.vocab_size, 12).tolist()]
    [wide] = search_text(model, [context], beam=400)
    [narrow] = search_text(model, [context], beam=2)
    [heirs] = search_text(model, [context], beam=2, sentence_beam=1)
    assert narrow.prefix_log_p[-1] < wide.prefix_log_p[-1] - 1e-3
    assert narrow.prefix_log_p[-1] < heirs.prefix_log_p[-1]
