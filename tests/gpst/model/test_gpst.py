"""GPST against the slow recursive form: values to 1e-10, gradients to 1e-6 (both in float64)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slow_gpst import SlowLosses, assert_close
from small_model import CONFIG, make_contexts, make_model

from gpst.batch import BatchCounts, ContextBatch
from gpst.chart.decode import decode
from gpst.model.gpst import GPSTModel
from gpst.model.losses import total_loss


def sums(model: GPSTModel, contexts: list[list[list[int]]], **options) -> dict[str, torch.Tensor]:
    losses = model(ContextBatch.from_sentences(contexts), **options).losses
    return {name: term.sum for name, term in losses.items()}


LENGTHS = [[5, 1, 7, 2], [1], [2, 8]]


@pytest.mark.parametrize("schedule", ["score", "height"])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_values_equal_the_slow_form(schedule, temperature):
    model, contexts = make_model(composition={"schedule": schedule}), make_contexts(LENGTHS)
    slow = SlowLosses(model, contexts, temperature)
    with torch.no_grad():
        expected = slow.composition_side() | slow.auto_regression()
        assert_close(sums(model, contexts, temperature=temperature), expected)
    assert expected["height"] > 0.1  # the test would not see it otherwise


def test_boundary_scores_of_sentences_of_many_lengths():
    """Attention goes by groups of similar length; they mix with none of the other sentences."""
    model, contexts = make_model(), make_contexts([[20, 3, 9], [1, 40, 8, 17]])
    scores = model.parser(ContextBatch.from_sentences(contexts))
    slow, upstream = SlowLosses(model, contexts), torch.randn_like(scores)
    expected = []
    for tokens in (s for context in contexts for s in context):
        expected += [slow.boundary_scores(tokens), scores.new_zeros(1)]
    last = torch.cat(expected) == 0.0
    torch.testing.assert_close(scores.masked_fill(last, 0.0), torch.cat(expected))
    ours = gradients(model, (scores * upstream).masked_fill(last, 0.0).sum())
    theirs = gradients(model, (torch.cat(expected) * upstream).sum())
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, msg=name)


def gradients(model: GPSTModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    # None stays None: a parameter that takes no part would hang or crash the ranks of a cluster.
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def two_backward_gradients(slow: SlowLosses, counts: BatchCounts) -> dict[str, torch.Tensor]:
    """One backward pass of the auto-regression with constant weights, one of all else, added."""
    stop = slow.model.config.gradient_stop
    ar, rest = slow.auto_regression(live=not stop), slow.composition_side()
    loss_ar = (ar["token"] + ar["type"]) / counts.actions
    loss_rest = (
        rest["autoencoding"] / counts.tokens
        + rest["parser"] / counts.splits
        + rest["height"] / counts.sentences
    )
    first, second = gradients(slow.model, loss_ar), gradients(slow.model, loss_rest)
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in first | second}


@pytest.mark.parametrize(
    ("schedule", "recompute", "temperature", "fields"),
    [
        ("score", False, 1.0, {}),
        ("score", True, 0.4, {}),
        ("height", False, 2.0, {}),
        ("height", True, 1.0, {"gradient_stop": False}),
        ("score", False, 0.4, {"gradient_stop": False}),
        ("score", False, 1.0, {"surrogate": False}),
        ("score", True, 1.0, {"last_word": True}),
        ("score", False, 1.0, {"last_word": True, "surrogate": False}),
    ],
)
def test_gradients_equal_two_backward_passes(schedule, recompute, temperature, fields):
    model = make_model(**fields, composition={"schedule": schedule})
    contexts = make_contexts(LENGTHS)
    batch = ContextBatch.from_sentences(contexts)
    slow = SlowLosses(model, contexts, temperature)
    expected = two_backward_gradients(slow, batch.counts)
    model.activation_checkpointing = {"composition", "generator"} if recompute else set()
    losses = model(batch, temperature=temperature).losses
    actual = gradients(model, total_loss(losses, batch.counts))
    assert actual.keys() == {name for name, _ in model.named_parameters()}
    for name, gradient in actual.items():
        reference = expected.get(name, torch.zeros_like(gradient))
        scale = max(reference.abs().max().item(), 1e-6)
        assert (gradient - reference).abs().max().item() <= 1e-6 * scale, name


def test_auto_regression_never_reaches_the_split_weights():
    contexts = make_contexts(LENGTHS)
    batch = ContextBatch.from_sentences(contexts)
    reached = {}
    for stop in (True, False):
        model = make_model(gradient_stop=stop)
        losses = model(batch).losses
        found = gradients(model, losses["token"].sum + losses["type"].sum)
        reached[stop] = {n for n, g in found.items() if g.abs().max() > 1e-9}
    scores = {n for n, _ in make_model().named_parameters() if n.startswith("composition.score")}
    assert scores
    assert not scores & reached[True]
    assert scores <= reached[False]
    assert "composition.layers.0.ffn_in.weight" in reached[True]


def test_without_surrogates_the_models_are_disconnected():
    model = make_model(surrogate=False)
    losses = model(ContextBatch.from_sentences(make_contexts(LENGTHS))).losses
    found = gradients(model, losses["token"].sum + losses["type"].sum)
    for name, gradient in found.items():
        if name.startswith(("composition", "decomposition", "scaling", "parser")):
            assert gradient.abs().max() == 0, name


def test_batching_padding_and_order_change_nothing():
    model = make_model()
    contexts = make_contexts([[5, 1, 9], [3], [1, 1], [20, 2], [40]])
    whole = sums(model, contexts)
    parts = [sums(model, [context]) for context in contexts]
    assert_close(whole, {name: sum(part[name] for part in parts) for name in whole})
    order = [3, 0, 4, 2, 1]
    assert_close(sums(model, [contexts[i] for i in order]), whole)


def test_order_of_sentences_changes_no_tree_and_no_composition_loss():
    model = make_model()
    (sentences,) = make_contexts([[5, 1, 9, 30, 2]])
    order = [4, 2, 0, 3, 1]
    mixed = [[sentences[i] for i in order]]
    trees = model.induced_trees(ContextBatch.from_sentences([sentences]))
    mixed_trees = model.induced_trees(ContextBatch.from_sentences(mixed))
    assert mixed_trees == [trees[i] for i in order]
    one, other = sums(model, [sentences]), sums(model, mixed)
    for name in ("autoencoding", "parser", "height"):
        assert abs(one[name].item() - other[name].item()) <= 1e-10 * max(1, one[name].item())


@pytest.mark.parametrize("length", [1, 2, 256])
def test_sentence_lengths(length):
    model, contexts = make_model(), make_contexts([[length]])
    batch = ContextBatch.from_sentences(contexts)
    loss = total_loss(model(batch).losses, batch.counts)
    found = gradients(model, loss)
    assert found.keys() == {name for name, _ in model.named_parameters()}
    assert all(torch.isfinite(g).all() for g in found.values())
    (tree,) = model.induced_trees(batch)
    assert tree.num_tokens == length
    if length <= 2:
        with torch.no_grad():
            slow = SlowLosses(model, contexts)
            assert_close(sums(model, contexts), slow.composition_side() | slow.auto_regression())


def test_trees_are_those_of_the_slow_form():
    model, contexts = make_model(), make_contexts([[5, 1, 9, 30, 2]])
    slow = SlowLosses(model, contexts)
    with torch.no_grad():
        expected = [slow.sentence(tokens, live=True)[0].tree() for tokens in contexts[0]]
    assert model.induced_trees(ContextBatch.from_sentences(contexts)) == expected


def test_equal_scores_take_the_smaller_split():
    """With all s_e equal, each node's split is its cell's first; the slow form agrees."""
    model, contexts = make_model(), make_contexts([[5, 1, 9, 30]])
    with torch.no_grad():
        for parameter in model.composition.score.parameters():
            parameter.zero_()
    batch = ContextBatch.from_sentences(contexts)
    slow = SlowLosses(model, contexts)
    with torch.no_grad():
        expected = [slow.sentence(tokens, live=True)[0].tree() for tokens in contexts[0]]
    assert model.induced_trees(batch) == expected
    layout = model.layout(batch, model.parser(batch).detach())
    induced = decode(layout, torch.zeros(len(layout.parent)))
    assert (induced.best_edge == layout.edge_start).all()
    # There were other splits to choose from.
    assert max(block.num_splits for level in layout.levels for block in level.blocks) > 1


def test_recomputation_repeats_the_random_numbers():
    torch.manual_seed(0)
    model = GPSTModel(CONFIG).double().train()
    batch = ContextBatch.from_sentences(make_contexts(LENGTHS))
    found = []
    for checkpointing in (set(), {"composition", "generator"}):
        model.activation_checkpointing = checkpointing
        torch.manual_seed(7)
        loss = total_loss(model(batch, noise=1.0).losses, batch.counts)
        found.append((loss.item(), gradients(model, loss)))
    assert found[0][0] == found[1][0]
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], rtol=1e-9, atol=1e-12)


def test_noise_changes_the_order_only_in_the_chart():
    model = make_model()
    batch = ContextBatch.from_sentences(make_contexts([[12, 20]]))
    torch.manual_seed(0)
    quiet, noisy = model(batch), model(batch, noise=5.0)
    assert quiet.losses["token"].sum != noisy.losses["token"].sum
    assert quiet.losses["parser"].sum != noisy.losses["parser"].sum


def test_half_precision_is_finite_and_close():
    torch.manual_seed(0)
    model = GPSTModel(CONFIG).eval()
    batch = ContextBatch.from_sentences(make_contexts([[5, 1, 9, 60], [100]]))
    full = total_loss(model(batch).losses, batch.counts)
    half_model = GPSTModel(CONFIG).eval()
    half_model.load_state_dict(model.state_dict())
    half_model = half_model.bfloat16()
    half = total_loss(half_model(batch).losses, batch.counts)
    half.backward()
    assert half.dtype == torch.float32
    assert abs(half.item() - full.item()) < 0.05 * full.item()
    assert all(torch.isfinite(p.grad).all() for p in half_model.parameters() if p.grad is not None)


def test_statistics_are_sums_over_the_trees():
    model = make_model()
    batch = ContextBatch.from_sentences(make_contexts([[1, 2, 12]]))
    statistics = model(batch).statistics
    internal = sum(
        sum(i < j for i, j in tree.spans) - 1
        for tree in model.induced_trees(batch)
        if tree.num_tokens > 1
    )
    children = statistics["left_children"].sum + statistics["right_children"].sum
    assert children.item() == internal
    splits = batch.counts.splits
    assert 0 <= statistics["agreement"].sum.item() <= splits
    assert 0 <= statistics["entropy"].sum.item() <= splits * np.log(2) + 1e-6


def test_a_context_that_is_too_long_is_named():
    batch = ContextBatch.from_sentences(make_contexts([[200, 200]]))
    with pytest.raises(ValueError, match="400 tokens, but the model takes 300"):
        make_model()(batch)
