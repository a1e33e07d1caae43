"""Groups of the optimizer: who is decayed, who has the parser's rate."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from gpst.config import config_from_dict
from gpst.model.build import build_model
from gpst.model.classifier import Classifier
from pipeline.config.sections import OptimConfig
from pipeline.engine.optimizer import build_optimizer, set_rates

CONFIG = OptimConfig(
    learning_rate=0.1, parser_learning_rate=0.5, weight_decay=0.01, betas=(0.8, 0.9), eps=1e-6
)
CPU = torch.device("cpu")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 3)
        self.parser = nn.Linear(3, 4)
        self.groups = {
            "parser": [self.parser.weight],
            "parser_no_decay": [self.parser.bias],
            "decay": [self.body.weight],
            "no_decay": [self.body.bias],
        }

    def parameter_groups(self):
        return dict(self.groups)


def test_each_parameter_has_its_rate_and_decay():
    model = Model()
    optimizer = build_optimizer(model, CONFIG, CPU)
    found = {
        id(p): (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert found == {
        id(model.body.weight): (0.1, 0.01),
        id(model.body.bias): (0.1, 0.0),
        id(model.parser.weight): (0.5, 0.01),
        id(model.parser.bias): (0.5, 0.0),
    }


def test_rates_are_set_and_a_checkpoints_other_values_overruled():
    optimizer = build_optimizer(Model(), CONFIG, CPU)
    for group in optimizer.param_groups:
        group |= {"betas": (0.1, 0.1), "eps": 9.0, "weight_decay": 9.0}
    set_rates(optimizer, replace(CONFIG, weight_decay=0.2), 1.0, 2.0)
    for group in optimizer.param_groups:
        assert group["lr"] == (2.0 if group["name"].startswith("parser") else 1.0)
        assert group["weight_decay"] == (0.0 if "no_decay" in group["name"] else 0.2)
        assert (group["betas"], group["eps"]) == ((0.8, 0.9), 1e-6)


def test_a_model_without_parser_has_no_empty_groups():
    model = Model()
    model.groups = {"decay": [*model.parameters()], "no_decay": []}
    assert [g["name"] for g in build_optimizer(model, CONFIG, CPU).param_groups] == ["decay"]


def test_a_forgotten_parameter_is_an_error():
    model = Model()
    model.groups["no_decay"] = []
    with pytest.raises(ValueError, match=r"body\.bias"):
        build_optimizer(model, CONFIG, CPU)


def test_a_parameter_in_two_groups_is_an_error():
    model = Model()
    model.groups["decay"].append(model.body.bias)
    with pytest.raises(ValueError, match="twice"):
        build_optimizer(model, CONFIG, CPU)


# --- the models' own parameters, by name

NOT_DECAYED = re.compile(
    r"""(^|\.)(embedding|position|wte|wpe)\.weight$    # tables of embeddings
    | (^|\.|_)(norm|ln_1|ln_2|ln_f)\.weight$         # norms
    | \.bias$
    | (^|\.)(role|root|comp_embedding)$              # roles and single vectors
    """,
    re.VERBOSE,
)
TINY = {"vocab_size": 20, "bos_token_id": 0, "hidden_dim": 8, "num_heads": 2, "ffn_dim": 16}
GPST = {
    **TINY,
    "num_type_layers": 1,
    "num_token_layers": 1,
    "composition": {"dim": 8, "num_heads": 2, "ffn_dim": 16, "score_dim": 4},
    "parser": {"dim": 8, "num_heads": 2, "ffn_dim": 16, "num_layers": 1},
}
MODELS = {
    "gpst": GPST,
    "without surrogates": {**GPST, "surrogate": False},
    "without gradient stop": {**GPST, "gradient_stop": False},
    "gpt2": {**TINY, "kind": "gpt2", "num_layers": 1},
}


@pytest.mark.parametrize("head", [False, True], ids=["", "classifier"])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_s_group_by_its_name(name, head):
    model = build_model(config_from_dict(MODELS[name]))
    model = Classifier(model, 2) if head else model
    names = {id(p): n for n, p in model.named_parameters()}
    optimizer = build_optimizer(model, CONFIG, CPU)  # type: ignore[arg-type]
    rates = {"": 0.1, "parser": 0.5}
    seen = {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}
    assert set(seen) == set(names.values())
    for parameter, group in seen.items():
        own = "parser" if "parser." in parameter else ""
        decay = 0.0 if NOT_DECAYED.search(parameter) else 0.01
        assert (parameter, group["lr"], group["weight_decay"]) == (parameter, rates[own], decay)
    if name != "gpt2":
        decayed = {n.rpartition("parser.")[2] for n, g in seen.items() if g["name"] == "parser"}
        layer = ("query_key_value", "attention_out", "gate_and_value", "ffn_out")
        assert decayed == {*(f"layers.0.{n}.weight" for n in layer), "dense.weight", "score.weight"}
