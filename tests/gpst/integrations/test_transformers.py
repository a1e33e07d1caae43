"""What goes to the hub comes back whole: a stand-in for the hub's server keeps the files."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2LMHeadModel,
)

import gpst.integrations.transformers
from gpst import GPST
from gpst.export.huggingface import open_model


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """Where the repositories of the stand-in lie; what asks for more of a server fails."""

    def create_repo(_: HfApi, repo_id: str, **__: Any) -> SimpleNamespace:
        (tmp_path / "hub" / repo_id).mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(repo_id=repo_id)

    def create_commit(_: HfApi, repo_id: str, operations: Any, **__: Any) -> SimpleNamespace:
        for operation in operations:
            assert isinstance(operation, CommitOperationAdd)
            target = tmp_path / "hub" / repo_id / operation.path_in_repo
            assert isinstance(operation.path_or_fileobj, str | Path)
            shutil.copyfile(operation.path_or_fileobj, target)
        return SimpleNamespace(oid="0")

    def validate(_: HfApi, *, content: str, **__: Any) -> None:
        ModelCard(content)  # its metadata is YAML

    def card(_: type[ModelCard], repo_id: str, **__: Any) -> ModelCard:
        return ModelCard((tmp_path / "hub" / repo_id / "README.md").read_text())

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    monkeypatch.setattr(HfApi, "_validate_yaml", validate)
    monkeypatch.setattr("huggingface_hub.hf_api.is_xet_available", lambda: False)
    monkeypatch.setattr(ModelCard, "load", classmethod(card))
    return tmp_path / "hub"


def test_an_exported_folder_is_uploaded_as_it_is(tmp_path, make_export, hub):
    model = make_export(tmp_path / "out")
    api = HfApi()
    api.create_repo("me/gpst")
    api.upload_folder(repo_id="me/gpst", folder_path=tmp_path / "out")
    there = hub / "me" / "gpst"
    sent = {file.name for file in (tmp_path / "out").iterdir()}
    assert {file.name for file in there.iterdir()} == sent
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= sent
    assert gpst.integrations.transformers.GPSTConfig is type(
        AutoConfig.from_pretrained(there)
    )  # registers
    for auto in (AutoModel, AutoModelForCausalLM):
        loaded = auto.from_pretrained(there)
        assert type(loaded) is gpst.integrations.transformers.GPSTForCausalLM
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()["gpst." + name], tensor), name
    ids = AutoTokenizer.from_pretrained(there)("The old man").input_ids
    assert ids == open_model(tmp_path / "out").codec().tokenizer.encode("The old man").ids
    assert GPST.from_pretrained(there).parse("The old man.").words == ["The", "old", "man", "."]


def test_push_to_hub_of_a_loaded_model_gives_its_logits(tmp_path, make_export, hub):
    make_export(tmp_path / "out")
    assert gpst.integrations.transformers.GPSTForCausalLM is not None  # registers
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    HfApi().create_repo("me/again")
    HfApi().upload_folder(repo_id="me/again", folder_path=tmp_path / "out", allow_patterns="*.md")
    model.push_to_hub("me/again")
    AutoTokenizer.from_pretrained(tmp_path / "out").push_to_hub("me/again")
    there = hub / "me" / "again"
    assert "# A model" in (there / "README.md").read_text()
    ids = torch.tensor([[5, 9, 17, 200, 3]])
    with torch.no_grad():
        torch.testing.assert_close(
            AutoModelForCausalLM.from_pretrained(there)(ids).logits, model(ids).logits
        )
    assert GPST.from_pretrained(there).parse("The old man.").words == ["The", "old", "man", "."]


def test_a_classifier_comes_back_from_save_pretrained(tmp_path, make_export):
    make_export(tmp_path / "out")
    assert gpst.integrations.transformers.GPSTForSequenceClassification is not None  # registers
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", num_labels=3)
    model.save_pretrained(tmp_path / "saved")
    back = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert type(back) is gpst.integrations.transformers.GPSTForSequenceClassification
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    ids = torch.tensor([[5, 9, 17, 4], [7, 8, 40, 3]])
    with torch.no_grad():
        torch.testing.assert_close(back.eval()(ids).logits, model.eval()(ids).logits)


def test_logits_of_gpt2_are_those_of_the_baseline(tmp_path, make_export):
    model = make_export(tmp_path / "out", "gpt2")
    plain = GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([[0, 5, 9, 17, 2], [0, 300, 7, 7, 1]])
    with torch.no_grad():
        expected = model.gpt2(ids).logits
        torch.testing.assert_close(plain(ids).logits, expected)
    plain.save_pretrained(tmp_path / "again")
    with torch.no_grad():
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
        torch.testing.assert_close(again(ids).logits, expected)
