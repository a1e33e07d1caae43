"""The model and tokenizer to evaluate: an exported model, or a run's checkpoint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn

from pipeline.errors import ConfigError, DataError


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, with what its text goes through."""

    model: nn.Module
    tokenizer: Tokenizer
    path: str
    fingerprint: str
    """SHA-256 over names and values of the parameters."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def load_model(path: str | Path, device: str | None = None) -> LoadedModel:
    """Loads an exported model's folder, a checkpoint's, or a run's (its newest checkpoint).

    Args:
        device: where it goes; the GPU if there is one, by default.
    Raises:
        ConfigError: there is no such folder, or no such device.
        CheckpointError, DataError: the folder holds no whole model with its tokenizer.
    """
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(
            f"--model {path}: no such folder; give an exported model, a run or a checkpoint"
        )
    exported = (path / "config.json").is_file()
    model, tokenizer = _exported(path) if exported else _checkpoint(path)
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model = model.to(target).eval()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {target}: {' '.join(str(error).split())}") from None
    return LoadedModel(model, tokenizer, str(path), _fingerprint(model))


def _exported(path: Path) -> tuple[nn.Module, Tokenizer]:
    from gpst.hf.files import ModelFolderError, open_model

    try:
        folder = open_model(path)
        return folder.model(), folder.codec().tokenizer
    except ModelFolderError as error:
        raise DataError(f"--model: {error}") from None


def _checkpoint(path: Path) -> tuple[nn.Module, Tokenizer]:
    from gpst.config import config_from_dict
    from gpst.hf.codec import Codec
    from gpst.model import build_model
    from pipeline.checkpoint import load_model_weights

    config, weights = load_model_weights(path)
    model = build_model(config_from_dict(config["model"]))
    model.load_state_dict(weights)
    data = config["data"]
    folder = Path(data["path"] or data["datasets"][0]["path"]) / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        raise DataError(
            f"--model {path}: the run's tokenizer is not where it was ({folder}/tokenizer.json); "
            "run from the same folder, or give the exported model, which brings it along"
        )
    return model, Codec.load(folder).tokenizer


def _fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
