"""Exports from before phi_beta had a map for either sibling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import gpst.integrations.transformers
from gpst.export.former import config_now
from gpst.export.huggingface import open_model

THEN = {
    "composition.score.left": "composition.score.first",
    "composition.score.right": "composition.score.second",
    "decomposition.score.parent": "decomposition.score.first",
    "decomposition.score.left": "decomposition.score.second",
}


@pytest.fixture
def former(tmp_path: Path, make_export) -> tuple[Path, dict[str, torch.Tensor]]:
    """An export as it was written then, and what its weights are now, by our names."""
    folder = tmp_path / "former"
    now = dict(make_export(folder, token_head_dim=32).state_dict())
    for name in list(now):
        if name.startswith("decomposition.score.right"):
            now[name] = now[name.replace("right", "left")].clone()
    stored = {}
    for name, tensor in now.items():
        if ".score." in name and not name.startswith("parser"):
            role, layer, part = name.rsplit(".", 2)
            if role == "decomposition.score.right":
                continue
            place = {"0": "0", "2": "3"}[layer]
            name = f"{THEN[role]}.{place}.{part}"
        stored["gpst." + name] = tensor.clone()
    assert len(stored) == len(now) - 4
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["composition"]["score_dropout"] = 0.2
    config["token_head_dim"] = None  # twice the width, then
    config["parser"]["score_dim"] = 32  # null then: dim
    (folder / "config.json").write_text(json.dumps(config))
    return folder, now


def test_sizes_that_were_left_to_their_defaults_are_those_of_then():
    then = {
        "hidden_dim": 16,
        "token_head_dim": None,
        "composition": {"dim": 8, "score_dropout": 0.2},
        "parser": {"dim": 4, "score_dim": None},
    }
    now = config_now(then)
    assert (now["token_head_dim"], now["parser"]["score_dim"]) == (32, 4)
    assert now["composition"] == {"dim": 8}
    # Said outright, they stay; and so does all of an export of now.
    said = {**then, "token_head_dim": 48, "parser": {"dim": 4, "score_dim": 6}}
    assert config_now(said)["token_head_dim"] == 48
    assert config_now(said)["parser"]["score_dim"] == 6
    assert config_now({**then, "composition": {"dim": 8}})["token_head_dim"] is None


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_gpst_opens_them(former):
    folder, now = former
    model = open_model(folder).model()
    assert_equal(dict(model.state_dict()), now)
    left, right = (getattr(model.decomposition.score, side)[0].weight for side in ("left", "right"))
    with torch.no_grad():
        left.add_(1.0)
    assert not torch.equal(left, right)  # each its own from now on


@pytest.mark.parametrize("auto", [AutoModelForCausalLM, AutoModelForSequenceClassification])
def test_transformers_opens_them_and_saves_what_is_now(former, tmp_path, auto):
    assert gpst.integrations.transformers.GPSTForCausalLM is not None  # registers
    folder, now = former
    model, said = auto.from_pretrained(folder, output_loading_info=True)
    assert {n for n in said["missing_keys"] if not n.startswith("classifier")} == set()
    assert not said["unexpected_keys"]
    assert not said["mismatched_keys"]
    assert_equal(dict(model.gpst.state_dict()), now)
    with torch.no_grad():
        model.gpst.decomposition.score.right[0].weight.add_(1.0)
    model.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    names = {name for name in saved if not name.startswith("classifier")}
    assert names == {"gpst." + name for name in now}
    back = auto.from_pretrained(tmp_path / "saved")
    assert_equal(dict(back.state_dict()), dict(model.state_dict()))
