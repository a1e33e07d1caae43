"""The model and tokenizer to evaluate: an exported model, or a run's checkpoint."""

from __future__ import annotations

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
    raise DataError(f"--model {path}: exported models cannot be read yet; give a checkpoint")


def _checkpoint(path: Path) -> tuple[nn.Module, Tokenizer]:
    from gpst.config import config_from_dict
    from gpst.model import build_model
    from pipeline.checkpoint import load_model_weights

    config, weights = load_model_weights(path)
    model = build_model(config_from_dict(config["model"]))
    model.load_state_dict(weights)
    data = config["data"]
    folder = Path(data["path"] or data["datasets"][0]["path"]) / "tokenizer"
    return model, read_tokenizer(folder / "tokenizer.json")


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json.

    Raises:
        DataError: it is not there, or not one.
    """
    if not file.is_file():
        raise DataError(
            f"tokenizer {file}: no such file; export the model, which brings its tokenizer along"
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise DataError(f"tokenizer {file}: {' '.join(str(error).split())}") from None


def _fingerprint(model: nn.Module) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
