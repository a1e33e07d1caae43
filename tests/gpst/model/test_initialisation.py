"""How weights start under `init: width_scaled` and `init: paper`."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from gpst.config import (
    CompositionConfig,
    ConfigError,
    GPSTConfig,
    GPT2Config,
    ParserConfig,
    config_from_dict,
    config_to_dict,
)
from gpst.model.build import build_model
from gpst.model.gpst import GPSTModel

INITS = ["width_scaled", "paper"]
# Widths of 768 / 4 and 768 / 16: what is 0.02 at 768 is 0.04 and 0.08.
SIZES = {
    "vocab_size": 300,
    "bos_token_id": 0,
    "max_context_tokens": 200,
    "hidden_dim": 192,
    "num_heads": 4,
    "ffn_dim": 768,
}
CONFIG = GPSTConfig(
    **SIZES,
    num_type_layers=2,
    num_token_layers=8,
    token_head_dim=384,
    surrogate=False,
    composition=CompositionConfig(dim=48, num_heads=4, ffn_dim=192, num_layers=3, score_dim=12),
    parser=ParserConfig(dim=48, num_heads=4, ffn_dim=192, num_layers=2, score_dim=192),
)
GPT2 = GPT2Config(**SIZES, num_layers=8)

# Standard deviations, worked out by hand. PyTorch's own linear layer is U(-b, b) with b = 1 /
# sqrt(inputs), whose deviation is 1 / sqrt(3 * inputs): 48 inputs 1/12, 192 inputs 1/24,
# 96 inputs 0.05893, 768 inputs 1/48. Xavier is sqrt(2 / (inputs + outputs)).
UNIFORM = {48: 1 / 12, 96: 0.05893, 192: 1 / 24, 768: 1 / 48}
COMMON = {r".*norm\.(weight|bias)": 0.0}
PAPER = COMMON | {
    r"embedding\.weight|generator\.position\.weight|generator\.comp_embedding": 0.02,
    r"generator\.\w+_layers\..*(query_key_value|ffn_in)\.weight": 0.02,
    # Residual layers: 0.02 / sqrt(2 * blocks), 2 and 8 blocks.
    r"generator\.type_layers\..*_out\.weight": 0.01,
    r"generator\.token_layers\..*_out\.weight": 0.005,
    r"generator\.\w+_layers\..*\.bias": 0.0,
    r"generator\.type_head\.(dense|out)\.weight": UNIFORM[192],
    r"generator\.token_head\.dense\.weight": UNIFORM[192],
    r"generator\.token_head\.out\.weight": 0.02946,  # of 384
    r"autoencoding_head\.dense\.weight": UNIFORM[48],
    r"autoencoding_head\.out\.weight": UNIFORM[192],
    r"scaling\.down\.weight": UNIFORM[192],
    r"scaling\.up\.weight": UNIFORM[48],
    # Query, key and value are one Xavier matrix of 48 inputs and 144 outputs: sqrt(2 / 192).
    r"(de)?composition\.layers\.\d\.(query_key|value)\.weight": 0.10206,
    r"(de)?composition\.layers\.\d\.(query_key|value|attention_out)\.bias": 0.0,
    r"(de)?composition\.layers\.\d\.(attention_out|ffn_in)\.weight": UNIFORM[48],
    r"(de)?composition\.layers\.\d\.ffn_out\.weight": UNIFORM[192],
    r"(de)?composition\.score\..*\.weight": UNIFORM[48],
    r"(de)?composition\.role": 1.0,
    r"decomposition\.root": 0.2887,  # U(0, 1)
    r"parser\.embedding\.weight": 1.0,
    r"parser\.layers\.\d\.(query_key_value|attention_out|gate_and_value)\.weight": UNIFORM[48],
    r"parser\.layers\.\d\.ffn_out\.weight": UNIFORM[192],
    r"parser\.dense\.weight": UNIFORM[96],
    r"parser\.score\.weight": UNIFORM[192],
    # The biases of PyTorch's linear layers have the deviation of their weights; few numbers each.
    r"(scaling|.*head|parser\.dense|.*ffn_(in|out)|.*score).*\.bias": math.nan,
}
WIDTH_SCALED = COMMON | {
    r"embedding\.weight|generator\.position\.weight|generator\.comp_embedding": 0.04,
    r"generator\.\w+_layers\..*(query_key_value|ffn_in)\.weight": 0.04,
    r"generator\.type_layers\..*attention_out\.weight": 0.02,
    r"generator\.token_layers\..*attention_out\.weight": 0.01,
    r"generator\.type_layers\..*ffn_out\.weight": 0.01,  # from 768 inputs
    r"generator\.token_layers\..*ffn_out\.weight": 0.005,
    r"generator\.type_head\.dense\.weight": 0.04,
    r"generator\.type_head\.out\.weight": 0.004,
    # Each row of (1, -1) halves of the identity: one 1 in 192.
    r"generator\.token_head\.(dense|out)\.weight": 0.0722,
    r"autoencoding_head\.(dense|out)\.weight": math.nan,
    r"scaling\.down\.weight": 0.0722,  # orthonormal rows of 192
    r"scaling\.up\.weight": 0.00577,  # 0.04 * sqrt(192 / 48) of that
    r"(de)?composition\.layers\.\d\.query_key\.weight": 0.1179,  # 48 inputs, 96 outputs
    r"(de)?composition\.layers\.\d\.(value|attention_out)\.weight": 0.1443,
    r"(de)?composition\.layers\.\d\.ffn_(in|out)\.weight": 0.0913,  # 48 and 192
    r"(de)?composition\.score\.\w+\.0\.weight": 0.1443,
    r"(de)?composition\.score\.\w+\.[1-9]\.weight": 0.1826,  # 48 and 12
    r"(de)?composition\.role|decomposition\.root": 0.02,
    r"parser\.embedding\.weight": 0.08,
    r"parser\.layers\.\d\.query_key_value\.weight": 0.10206,
    r"parser\.layers\.\d\.attention_out\.weight": 0.1443,
    r"parser\.layers\.\d\.gate_and_value\.weight": 0.0674,  # 48 and 384
    r"parser\.layers\.\d\.ffn_out\.weight": 0.0913,
    r"parser\.dense\.weight": 0.05657,  # 0.02 * sqrt(768 / 96)
    r"parser\.score\.weight": 0.04,
    r".*\.bias": 0.0,
}


def make(init: str, seed: int = 0, **changes) -> GPSTModel:
    torch.manual_seed(seed)
    model = build_model(replace(CONFIG, init=init, **changes))
    assert isinstance(model, GPSTModel)
    return model


@pytest.mark.parametrize(("init", "expected"), [("paper", PAPER), ("width_scaled", WIDTH_SCALED)])
def test_every_weight_has_the_spread_that_is_written_here(init, expected):
    """A new parameter has to be written into both tables."""
    for name, parameter in make(init).named_parameters():
        found = [std for pattern, std in expected.items() if re.fullmatch(pattern, name)]
        assert found, f"{name} is in no row of the table for {init}"
        values = parameter.detach()
        measured = float(values.std())
        if math.isnan(found[0]):
            assert measured > 0, name
            continue
        # The deviation of n numbers has an error of its own, about 1 / sqrt(2 n).
        error = 4 / math.sqrt(2 * values.numel())
        assert measured == pytest.approx(found[0], rel=error, abs=1e-6), name


def test_the_start_follows_from_the_seed():
    for init in INITS:
        first, again, other = (make(init, seed).state_dict() for seed in (3, 3, 4))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
        assert not torch.equal(first["parser.dense.weight"], other["parser.dense.weight"])


def test_layers_of_the_composition_model_do_not_start_as_copies():
    """In the authors' code they do."""
    for init in INITS:
        layers = make(init).composition.pair_layers
        for name, _ in layers[0].named_parameters():
            values = [layer.get_parameter(name) for layer in layers]
            if float(values[0].detach().std()) > 0:
                assert not torch.equal(values[0], values[1]), (init, name)
                assert not torch.equal(values[1], values[2]), (init, name)


def test_width_scaled_heads_start_as_linear_maps_and_those_of_the_paper_do_not():
    """Also where the heads have more units than that takes."""
    states = torch.randn(7, 192)
    outside = torch.randn(7, 48)
    for init in INITS:
        model = make(init, token_head_dim=500).eval()
        down, up = model.scaling.down.weight, model.scaling.up.weight
        linear = {
            "token": torch.allclose(model.generator.token_head(states), states, atol=1e-5),
            "auto-encoding": torch.allclose(
                model.autoencoding_head(outside), outside @ down, atol=1e-5
            ),
            "scaling": torch.allclose(up, 0.08 * down.T, atol=1e-6),
            "rows": torch.allclose(down @ down.T, torch.eye(48), atol=1e-5),
        }
        assert set(linear.values()) == {init == "width_scaled"}, (init, linear)


def test_gpt2_has_both():
    for init, std in (("paper", 0.02), ("width_scaled", 0.04)):
        torch.manual_seed(0)
        model = build_model(replace(GPT2, init=init))
        weights = dict(model.named_parameters())
        expected = {"wte": std, "wpe": std, "h.0.mlp.c_fc": std, "h.7.attn.c_proj": std / 4}
        for name, deviation in expected.items():
            measured = float(weights[f"gpt2.transformer.{name}.weight"].detach().std())
            assert measured == pytest.approx(deviation, rel=0.03), name


def test_at_the_width_of_gpt2_small_both_say_the_same_of_gpt2():
    found = []
    for init in INITS:
        torch.manual_seed(0)
        wide = replace(GPT2, init=init, hidden_dim=768, num_layers=1, vocab_size=9)
        found.append(build_model(wide))
    for one, other in zip(found[0].parameters(), found[1].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["gpst", "gpt2"])
def test_the_field_is_kept_and_checked(config):
    written = config_to_dict(replace(config, init="paper"))
    assert written["init"] == "paper"
    assert config_from_dict(written).init == "paper"
    del written["init"]  # of before the field
    assert config_from_dict(written).init == "width_scaled"
    with pytest.raises(ConfigError, match=r"init: 'papr' is not allowed; .*width_scaled or paper"):
        replace(config, init="papr")


def test_only_a_token_head_that_starts_as_the_identity_needs_two_units_a_feature():
    assert replace(CONFIG, init="paper", token_head_dim=5).token_head_dim == 5
    with pytest.raises(ConfigError, match=r"token_head_dim: 383 .* at least 384"):
        replace(CONFIG, token_head_dim=383)
