"""The search leaves out work, but nothing of its result: against its definition, and uncached."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gpst.search import batches
from gpst.search.beam import Beam
from gpst.search.candidates import COMP
from gpst.search.parse import search_text
from gpst.search.vocabulary import TokenScores, Vocabulary


def plain_search(oracle, sentence: list[int], beam: int) -> tuple[list[float], dict]:
    """Design section 6 word for word: prefixes, and the hypotheses at the end with their log p."""
    known: dict[tuple[int, ...], float] = {}

    def log_p(actions: tuple[int, ...]) -> float:
        if actions not in known:
            known[actions] = oracle.log_p(actions)
        return known[actions]

    def height(actions: tuple[int, ...]) -> int:
        return sum(-1 if action == COMP else 1 for action in actions)

    kept: list[tuple[int, ...]] = [()]
    prefixes = []
    for token in [*sentence, None]:
        going, done = kept, []
        while going:
            pool = list(done)
            for actions in going:
                if height(actions) > 1:
                    pool.append((*actions, COMP))
                if token is not None:
                    pool.append((*actions, token))
            kept = sorted(pool, key=lambda actions: -log_p(actions))[:beam]
            closed = {a for a in kept if token is None and height(a) == 1}
            going = [a for a in kept if a[-1] == COMP and a not in closed]
            done = [a for a in kept if a not in going]
        kept = done
        prefixes.append(math.log(sum(math.exp(log_p(actions)) for actions in kept)))
    return prefixes[:-1], {actions: log_p(actions) for actions in kept}


@pytest.mark.parametrize(
    ("beam", "seed"),
    [
        *[(1, 0), (3, 1)],
        *[pytest.param(b, s, marks=pytest.mark.slow) for b in (1, 2, 3, 7) for s in (0, 1)],
    ],
)
def test_a_small_beam_keeps_what_the_definition_keeps(tiny, oracle_of, beam, seed):
    model = tiny(seed)
    rng = np.random.default_rng(seed)
    sentences = [rng.integers(0, 6, n).tolist() for n in (7, 3, 5)]
    # A batch of different lengths, so that contexts are at different words at a time.
    together = search_text(model, [[sentence] for sentence in sentences], beam=beam, num_best=beam)
    for sentence, result in zip(sentences, together, strict=True):
        prefixes, kept = plain_search(oracle_of(model), sentence, beam)
        assert result.prefix_log_p == pytest.approx(prefixes, abs=1e-5)
        expected = sorted(kept.values(), reverse=True)
        assert [parse.log_p for parse in result.parses] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("dtype", "spread"), [(torch.float64, 6.0), (torch.float32, 2.0)])
def test_cached_logits_are_those_of_an_uncached_pass(tiny, monkeypatch, dtype, spread):
    model = tiny(3, spread).to(dtype)
    tokens = np.random.default_rng(2).integers(0, 6, 30).tolist()
    seen: list[tuple[tuple[int, ...], torch.Tensor, torch.Tensor]] = []
    most: list[int] = []
    read, written = Beam.read, Beam.token_features

    def reading(beam, active, ahead):
        before = [tuple(beam.actions(0, row)) for row in range(beam.log_p.shape[1])]
        found = read(beam, active, ahead)
        width = found.rows.shape[1] // found.levels
        rows = enumerate(found.rows[0].tolist())
        # A node that is read ahead follows its hypothesis and COMP for each level.
        beam.read_now = [before[row] + (COMP,) * (at // width) for at, row in rows]
        most.append(found.levels)
        beam.reading = found
        return found

    def features(beam, hidden, rows, allowed):
        values, slots = written(beam, hidden, rows, allowed)
        found = beam.reading
        types = torch.stack((found.gen_log_p, found.comp_log_p), -1)[allowed]
        own = [a for a, yes in zip(beam.read_now, allowed[0].tolist(), strict=True) if yes]
        seen.extend(zip(own, types, values @ model.embedding.weight.T, strict=True))
        return values, slots

    monkeypatch.setattr(Beam, "read", reading)
    monkeypatch.setattr(Beam, "token_features", features)
    search_text(model, [[tokens]], beam=4)
    assert len(seen) > 150
    assert max(most) > 2
    for actions, types, logits in seen[::7]:
        expected_types, expected_logits = uncached(model, actions)
        assert torch.allclose(types.double(), expected_types.double(), atol=1e-5)
        assert torch.allclose(logits, expected_logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def uncached(model, actions: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of (GEN, COMP) and the logits of the token after the actions, by one whole pass."""
    generator, stack, words = model.generator, [], 0
    inputs = [model.embedding.weight[0] + generator.position.weight[0]]
    for action in actions:
        if action == COMP:
            right, left = stack.pop(), stack.pop()
            vector = model.composition(left[None], right[None])[0][0]
            stack.append(F.layer_norm(vector, vector.shape))
            node = model.scaling.up(stack[-1])
        else:
            node = model.embedding.weight[action]
            stack.append(model.scaling.down(node))
            words += 1
        inputs.append(node + generator.position.weight[words])
    hidden = generator.type_layers(torch.stack(inputs)[None])[0]
    gens = [t for t, action in enumerate(actions) if action != COMP] + [len(actions)]
    features = generator.token_features(generator.token_layers(hidden[gens][None])[0, -1])
    types = F.log_softmax(generator.type_logits(hidden[-1]), -1)
    return types, features @ model.embedding.weight.T


@pytest.mark.parametrize("size", [500, 4096, 9000])
@torch.no_grad()
def test_no_log_p_exceeds_its_bound(tiny, size):
    model = tiny(vocab_size=size)
    torch.manual_seed(0)
    tokens = torch.randint(0, size, (40,))
    for scale in (0.01, 0.3, 3.0):
        features = torch.randn(40, 16, dtype=torch.float64) * scale
        scores = TokenScores(Vocabulary(model), features, tokens)
        exact = (features @ model.embedding.weight.T).log_softmax(1)[range(40), tokens]
        assert torch.allclose(scores.exact(torch.arange(40)), exact, atol=1e-10)
        rows = torch.tensor([7, 3])
        assert torch.allclose(scores.exact(rows), exact[rows], atol=1e-10)
        assert bool((scores.upper >= exact - 1e-10).all())
        # Tight where the logits hardly differ, and never more than 0 = log 1.
        assert scale > 0.01 or float((scores.upper - exact).max()) < 0.01
        assert float(scores.upper.max()) <= 0
    assert scores.exact(rows[:0]).shape == (0,)


def test_what_is_left_out_changes_no_result(tiny, monkeypatch):
    model = tiny(5, vocab_size=9000)
    rng = np.random.default_rng(1)
    contexts = [[rng.integers(0, 9000, n).tolist()] for n in (4, 12, 25)]
    counts = {"scored": 0, "all": 0}
    exact = TokenScores.exact

    def counted(scores, rows):
        counts["scored"] += len(rows)
        return exact(scores, rows)

    monkeypatch.setattr(TokenScores, "exact", counted)
    bounded = search_text(model, contexts, beam=4, num_best=4)
    scored = counts["scored"]

    def everything(scores, *arguments):
        init(scores, *arguments)
        scores.upper = torch.zeros_like(scores.upper)
        counts["all"] += len(scores.upper)

    init = TokenScores.__init__
    monkeypatch.setattr(TokenScores, "__init__", everything)
    for found, expected in zip(
        bounded, search_text(model, contexts, beam=4, num_best=4), strict=True
    ):
        assert found.parses == expected.parses
        assert found.prefix_log_p == pytest.approx(expected.prefix_log_p, abs=1e-12)
    assert scored < 0.8 * counts["all"]


def test_scores_that_are_taken_as_expected_change_no_result(tiny, monkeypatch):
    model = tiny(2, 1.5, vocab_size=3000)
    sentence = np.random.default_rng(3).integers(0, 3000, 9).tolist()
    looked_at = []
    features = Beam.token_features

    def counted(beam, hidden, rows, allowed):
        looked_at[-1] += len(hidden)
        return features(beam, hidden, rows, allowed)

    monkeypatch.setattr(Beam, "token_features", counted)
    found = []
    for width in (1 << 30, 0):
        monkeypatch.setattr("gpst.search.parse._JUDGED_DIM", width)
        looked_at.append(0)
        found += search_text(model, [[sentence]], beam=20, num_best=20)
    sure, judged = found
    assert [parse.trees for parse in judged.parses] == [parse.trees for parse in sure.parses]
    assert judged.prefix_log_p == pytest.approx(sure.prefix_log_p, abs=1e-9)
    assert looked_at[1] < 0.9 * looked_at[0]


def test_batches_of_unlike_lengths_give_what_even_ones_give(tiny, monkeypatch):
    model = tiny(6)
    rng = np.random.default_rng(4)
    contexts = [[rng.integers(0, 6, n).tolist()] for n in (1, 9, 3, 12)]
    found = batches.in_order(batches.search_batches(model, contexts, beam=3))
    assert list(batches.batches([1, 9, 3, 12], 9, even=False)) == [[3, 1, 2, 0]]
    monkeypatch.setattr(batches, "_CPU_ROWS", 3)
    alone = batches.in_order(batches.search_batches(model, contexts, beam=3))
    for one, other in zip(found, alone, strict=True):
        assert one.parses[0].trees == other.parses[0].trees
        assert one.prefix_log_p == pytest.approx(other.prefix_log_p, abs=1e-9)


def test_batches_are_full_and_sorted():
    lengths = [5, 1, 3, 2, 9, 2]
    full = [[4], [0], [2, 3], [5, 1]]
    assert list(batches.batches(lengths, max_tokens=6, even=False)) == full
    assert list(batches.batches(lengths, 1)) == [[4], [0], [2], [3], [5], [1]]
    assert list(batches.batches(lengths, 9)) == [[4, 0], [2, 3, 5], [1]]
    assert list(batches.batches([], max_tokens=6)) == []
