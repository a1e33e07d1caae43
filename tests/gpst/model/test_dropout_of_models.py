"""Dropout's places in whole models: parser, generator and heads."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from shares_of_zeros import Counted, zeros
from small_model import CONFIG, make_contexts, make_model
from torch import Tensor, nn

import gpst.kernels.choice
from gpst.batch import ContextBatch
from gpst.config import ParserConfig
from gpst.model.gpst import GPSTModel
from gpst.model.losses import total_loss

RATE, TOLERANCE = 0.2, 0.03
RATES = {"dropout": 0.1, "head_dropout": 0.3}
PARSER = ParserConfig(dim=16, num_heads=2, ffn_dim=32, num_layers=2, score_dim=24, dropout=0.4)


def whole_model() -> GPSTModel:
    torch.manual_seed(0)
    chart = dataclasses.replace(CONFIG.composition, dropout=RATE)
    sizes = {"hidden_dim": 32, "ffn_dim": 64, "composition": chart, "parser": PARSER, **RATES}
    return GPSTModel(dataclasses.replace(CONFIG, **sizes))


@pytest.mark.parametrize("recompute", [set(), {"generator", "composition"}])
@pytest.mark.parametrize("training", [True, False])
def test_zeros_of_parser_generator_and_heads(training: bool, recompute) -> None:
    """What goes into every layer of the model.

    The passes over the chart read what their linear layers compute, and have their own test.
    """
    model = whole_model().train(training)
    model.activation_checkpointing = set(recompute)
    found: dict[str, float] = {}
    for name, module in model.named_modules():
        of_a_pass = isinstance(module, nn.Linear) and "composition." in name
        if isinstance(module, (nn.Linear, nn.LayerNorm, nn.RMSNorm)) and not of_a_pass:
            module.register_forward_pre_hook(
                lambda _, given, name=name: found.update({name: zeros(given[0])})
            )
    model(ContextBatch.from_sentences(make_contexts([[40, 60, 100]])))
    expected = dict.fromkeys(found, 0.0)
    if training:
        expected |= {
            "generator.type_layers.blocks.0.attention_norm": RATES["dropout"],
            "generator.token_layers.blocks.0.attention_norm": RATES["dropout"],
            # The sum of a dropped input and a dropped residual.
            "generator.type_layers.blocks.0.ffn_norm": RATES["dropout"] ** 2,
            "generator.token_layers.blocks.0.ffn_norm": RATES["dropout"] ** 2,
            "generator.type_head.out": RATES["head_dropout"],
            "generator.token_head.out": RATES["head_dropout"],
            "autoencoding_head.out": RATES["head_dropout"],
            "parser.score": PARSER.dropout,
        }
    assert set(expected) == set(found)
    assert len(found) > 30
    assert found == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("training", [True, False])
def test_zeros_of_the_generator_s_residuals_and_attention(training: bool, monkeypatch) -> None:
    model = whole_model().train(training)
    counted, into = Counted(), {}
    right = gpst.kernels.attention.keep_mask

    def keep_mask(*args):
        mask = right(*args)
        counted.add("attention weights", mask)
        return mask

    monkeypatch.setattr(gpst.kernels.attention, "keep_mask", keep_mask)
    for block in (*model.generator.type_layers.blocks, *model.generator.token_layers.blocks):

        def middle(_, given, block=block):
            counted.add("attention residual", given[0] - into[block])
            into[block] = given[0]

        def end(module, _, out):
            counted.add("feed-forward residual", out - into[module])

        block.register_forward_pre_hook(lambda module, given: into.update({module: given[0]}))
        block.ffn_norm.register_forward_pre_hook(middle)
        block.register_forward_hook(end)
    model(ContextBatch.from_sentences(make_contexts([[40, 60, 100]])))
    rate = RATES["dropout"] if training else 0.0
    expected = {"attention residual": rate, "feed-forward residual": rate}
    if training:
        expected["attention weights"] = rate
    assert counted.shares == pytest.approx(expected, abs=TOLERANCE)


def test_nothing_is_dropped_before_the_parser_s_score() -> None:
    model = whole_model()
    batch = ContextBatch.from_sentences(make_contexts([[40, 60]]))
    hidden: list[Tensor] = []
    model.parser.dense.register_forward_pre_hook(lambda _, given: hidden.append(given[0]))
    for training in (True, False):
        model.train(training)
        model.parser(batch)
    assert torch.equal(*hidden)


def test_the_loss_goes_down_its_gradient_with_dropout_on() -> None:
    """Finite differences of the whole loss in float64, along all parameters at once."""
    rates = {"dropout": RATE}
    model = make_model(gradient_stop=False, composition=rates, **RATES).train()
    batch = ContextBatch.from_sentences(make_contexts([[5, 9], [7]]))

    def loss() -> Tensor:
        torch.manual_seed(4)
        return total_loss(model(batch).losses, batch.counts)

    parameters = list(model.parameters())
    into = torch.autograd.grad(loss(), parameters)
    directions = [torch.randn_like(p) for p in parameters]
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=step)
            values.append(loss().item())
    along = sum((g * d).sum().item() for g, d in zip(into, directions, strict=True))
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(along, rel=1e-5)
    assert abs(along) > 1e-3
