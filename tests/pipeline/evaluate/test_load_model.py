"""Models to evaluate: exported folders and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import nn

from gpst.config import config_to_dict
from gpst.export.huggingface import export
from pipeline.checkpoint import manager
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.load_model import load_model


def exported(folder: Path, model: nn.Module, tokenizer: Tokenizer) -> Path:
    source = folder / "source"
    source.mkdir(parents=True)
    tokenizer.save(str(source / "tokenizer.json"))
    config = model.config
    export(folder / "model", config, model.state_dict(), source, end_token=0)  # type: ignore[arg-type]
    return folder / "model"


@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_exported_models_load_with_their_tokenizer(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, pieces: Tokenizer
) -> None:
    model = request.getfixturevalue(f"tiny_{kind}")(pieces.get_vocab_size())
    folder = exported(tmp_path, model, pieces)

    loaded = load_model(folder, "cpu")

    assert loaded.tokenizer.encode("the dog").ids == pieces.encode("the dog").ids
    assert not loaded.model.training
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value)
    assert loaded.device == torch.device("cpu")


def test_fingerprints_tell_models_apart(
    tmp_path: Path, tiny_gpst: Callable, pieces: Tokenizer
) -> None:
    size = pieces.get_vocab_size()
    folders = [exported(tmp_path / str(k), tiny_gpst(size, k), pieces) for k in (0, 1)]
    prints = [load_model(folder, "cpu").fingerprint for folder in (*folders, folders[0])]

    assert prints[0] == prints[2] != prints[1]


def test_checkpoints_load_with_the_dataset_s_tokenizer(
    tmp_path: Path, tiny_gpst: Callable, pieces: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_gpst(pieces.get_vocab_size())
    (tmp_path / "data" / "tokenizer").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    config = {
        "model": config_to_dict(model.config),
        "data": {"path": str(tmp_path / "data"), "datasets": []},
    }
    monkeypatch.setattr(
        manager, "load_model_weights", lambda path: (config, dict(model.state_dict()))
    )

    with pytest.raises(DataError, match="the run's tokenizer is not where it was"):
        load_model(tmp_path / "run", "cpu")

    pieces.save(str(tmp_path / "data" / "tokenizer" / "tokenizer.json"))
    loaded = load_model(tmp_path / "run", "cpu")
    assert torch.equal(loaded.model.state_dict()["embedding.weight"], model.embedding.weight)
    assert loaded.tokenizer.get_vocab_size() == pieces.get_vocab_size()


def test_what_is_no_model_is_named(tmp_path: Path, tiny_gpst: Callable, pieces: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="no such folder; give an exported model"):
        load_model(tmp_path / "none")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"--model: .*half has no model\.safetensors"):
        load_model(tmp_path / "half")
    folder = exported(tmp_path, tiny_gpst(pieces.get_vocab_size()), pieces)
    with pytest.raises(ConfigError, match="--device nowhere: "):
        load_model(folder, "nowhere")
