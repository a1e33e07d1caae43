"""The model and tokenizer to evaluate or fine-tune: an exported model, or a run's checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from data_prep.tokenizer.load import TokenizerError, load_tokenizer
from gpst.cli.process import loading
from gpst.cli.threads import use_threads
from gpst.config import ModelConfig
from gpst.export.codec import Codec
from gpst.export.errors import ModelFolderError
from gpst.export.huggingface import ModelFolder, open_model
from gpst.model.build import build_model
from gpst.model.classifier import split_classifier
from pipeline.checkpoint.files import named_folder
from pipeline.checkpoint.trainer_state import tokenizer_folder
from pipeline.config.run import read_model
from pipeline.errors import ConfigError, DataError


@dataclass(frozen=True)
class StoredModel:
    """A language model on disk."""

    path: Path
    config: ModelConfig
    tokenizer: Path
    """The folder of tokenizer.json."""
    weights: Callable[[], dict[str, Tensor]]
    """Reads the language model's state dict; of a classifier without its last layer."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, with its tokenizer."""

    model: nn.Module
    tokenizer: Tokenizer
    path: str
    fingerprint: str
    """SHA-256 over names and values of the parameters."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def find_model(path: str | Path, option: str = "--model") -> StoredModel:
    """An exported model's folder, a checkpoint's, or a run's (its newest checkpoint).

    Args:
        path: also the file `latest` or `best` of a run's checkpoints.
        option: the path's name in messages.
    Raises:
        ConfigError: the folder does not exist.
        CheckpointError, DataError: the folder has no whole model with its tokenizer.
    """
    path = named_folder(path)
    if not path.is_dir():
        raise ConfigError(
            f"{option} {path}: no such folder; give an exported model, a run or a checkpoint"
        )
    if not (path / "config.json").is_file():
        return _checkpoint(path, option)
    try:
        folder = open_model(path)
    except ModelFolderError as error:
        raise DataError(f"{option}: {error}") from None

    def weights() -> dict[str, Tensor]:
        try:
            return folder.weights()
        except ModelFolderError as error:
            raise DataError(f"{option}: {error}") from None

    return StoredModel(path, folder.config, path, weights)


def load_model(path: str | Path, device: str | None = None) -> LoadedModel:
    """Loads an exported model's folder, a checkpoint's, or a run's (its newest checkpoint).

    Args:
        device: where it goes; by default the GPU if the machine has one.
    Raises:
        ConfigError: the folder or the device does not exist.
        CheckpointError, DataError: the folder has no whole model with its tokenizer.
    """
    stored = find_model(path)
    with loading("evaluate"):
        model = build_from(stored)
    try:
        tokenizer = Codec.load(stored.tokenizer).tokenizer
    except Exception as error:  # tokenizers raises plain Exception on a broken file
        raise DataError(f"--model: {stored.tokenizer}/tokenizer.json: {error}") from None
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model = model.to(target).eval()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {target}: {' '.join(str(error).split())}") from None
    use_threads(stored.config.hidden_dim, torch.device(target))
    return LoadedModel(model, tokenizer, str(path), fingerprint(model))


def build_from(stored: StoredModel) -> nn.Module:
    """The language model with its weights, on the CPU.

    Raises:
        DataError: the weights are damaged or do not fit the configuration.
    """
    model = build_model(stored.config)
    try:
        model.load_state_dict(stored.weights())
    except RuntimeError as error:
        line = " ".join(str(error).split())[:300]
        raise DataError(f"model {stored.path}: weights do not fit config.json: {line}") from None
    return model


def _checkpoint(path: Path, option: str) -> StoredModel:
    from pipeline.checkpoint.manager import load_model_weights

    config, saved = load_model_weights(path)
    folder = tokenizer_folder(config)
    if not (folder / "tokenizer.json").is_file():
        raise DataError(
            f"{option} {path}: the run's tokenizer is not where it was ({folder}/tokenizer.json); "
            "run from the same folder, or give the exported model, which brings it along"
        )
    core, _ = split_classifier(saved)
    return StoredModel(path, read_model(config["model"]), folder, lambda: core)


@dataclass(frozen=True)
class CheckpointFolder(ModelFolder):
    """A checkpoint that is read as an exported model is."""

    stored: StoredModel

    def codec(self) -> Codec:
        """The tokenizer of the run's dataset."""
        return Codec.load(self.stored.tokenizer)

    def weights(self) -> dict[str, Tensor]:
        """The core model's state dict."""
        return self.stored.weights()


def checkpoint_folder(path: Path) -> CheckpointFolder:
    """A checkpoint (a run's newest one) as a folder of an exported model.

    Raises:
        ConfigError, data_prep.errors.DataPrepError: its tokenizer has no end-of-document token.
    """
    stored = _checkpoint(path, "--model")
    last = end_token(stored.tokenizer)
    final = {*Codec.load(stored.tokenizer).final_tokens(), last}
    return CheckpointFolder(stored.path, stored.config, sorted(final), last, stored)


def end_token(tokenizer: Path) -> int:
    """The id of the token that ends a document."""
    try:
        return load_tokenizer(tokenizer).end_of_document_id
    except TokenizerError as error:
        if not (tokenizer / "tokenizer.json").is_file():
            raise
        # The message's advice is an option of data_prep.
        problem = str(error).partition(";")[0]
        cure = f"name bos_token and eos_token in {tokenizer / 'tokenizer_config.json'}"
        raise ConfigError(f"{problem}; {cure}") from error


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over names and values of the parameters."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
