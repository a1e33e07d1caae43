"""Exported model folders: config.json, model.safetensors, tokenizer.json, README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gpst.config import ConfigError, GPSTConfig, GPT2Config, config_from_dict, config_to_dict
from gpst.config_reader import parse_json, require
from gpst.export.codec import Codec
from gpst.export.errors import ModelFolderError
from gpst.export.former import config_now, weights_now
from gpst.export.remote import AUTO_MAP, REMOTE, REMOTE_CODE

PREFIX = "gpst."
"""Of the core model's parameters in the exported weights."""
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
_INDEX = "model.safetensors.index.json"
"""Names the files of weights that are too many for one."""


@dataclass(frozen=True)
class ModelFolder:
    """An exported model on disk, its configuration read and checked."""

    path: Path
    config: GPSTConfig | GPT2Config
    final_tokens: list[int]
    """Tokens that may end a sentence."""
    end_token: int | None
    """The token that ends a document."""

    def codec(self) -> Codec:
        """The tokenizer."""
        try:
            codec = Codec.load(self.path)
        except Exception as error:  # tokenizers raises plain Exception on a broken file
            raise ModelFolderError(f"{self.path / TOKENIZER}: {error}; export again") from error
        most = max(codec.tokenizer.get_vocab().values(), default=0)
        if most >= self.config.vocab_size:
            raise ModelFolderError(
                f"{self.path / TOKENIZER} has tokens up to {most}, but the model has "
                f"{self.config.vocab_size}: it is another model's; export again"
            )
        return codec

    def weights(self) -> dict[str, Tensor]:
        """The core model's state dict, in fp32 whatever is stored."""
        stored: dict[str, Tensor] = {}
        for name in self._weight_files():
            file = self.path / name
            try:
                stored |= {key: tensor.float() for key, tensor in load_file(file).items()}
            except (OSError, SafetensorError) as error:
                raise ModelFolderError(f"{file}: {error}; export the model again") from error
        _check_finite(stored, str(self.path))
        if isinstance(self.config, GPT2Config):
            return _gpt2_core(stored)
        return weights_now(
            {k.removeprefix(PREFIX): v for k, v in stored.items() if k.startswith(PREFIX)}
        )

    def _weight_files(self) -> list[str]:
        index = self.path / _INDEX
        if not index.is_file():
            return [WEIGHTS]
        try:
            return sorted(set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, UnicodeDecodeError, ConfigError, KeyError, TypeError) as error:
            raise ModelFolderError(f"{index}: {error}; export the model again") from error

    def model(self) -> nn.Module:
        """The core model (GPST or the GPT-2 baseline) in evaluation mode."""
        from gpst.model.build import build_model
        from gpst.model.modes import skip_init

        with skip_init():
            model = build_model(self.config)
        weights = self.weights()
        try:
            model.load_state_dict(weights, strict=True, assign=True)
        except RuntimeError as error:
            line = " ".join(str(error).split())
            raise ModelFolderError(
                f"{self.path / WEIGHTS} does not fit {CONFIG}: {line[:300]}"
            ) from error
        return model.eval()


def open_model(folder: str | Path) -> ModelFolder:
    """Reads the configuration of an exported model.

    Raises:
        ModelFolderError: no such folder, a file is missing, or the configuration is not ours.
    """
    path = Path(folder)
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        sharded = name == WEIGHTS and (path / _INDEX).is_file()
        if not sharded and not (path / name).is_file():
            what = "has no " + name if path.is_dir() else "does not exist"
            raise ModelFolderError(
                f"model {path} {what}; give a folder that `launch/convert.sh to-hf` has made"
            )
    try:
        values = parse_json((path / CONFIG).read_text(encoding="utf-8"))
        config = core_config(values)
        final, _, _ = (token_ids(values, name, config.vocab_size) for name in TOKEN_IDS)
    except (OSError, UnicodeDecodeError, ConfigError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{path / CONFIG}: {error}") from error
    return ModelFolder(path, config, final, values.get("eos_token_id"))


TOKEN_IDS = "sentence_final_token_ids", "eos_token_id", "pad_token_id"
"""Fields of a config.json that hold token ids."""


def token_ids(values: Mapping[str, Any], name: str, vocab_size: int) -> list[int]:
    """A token, several or none, as a list.

    Raises:
        ConfigError: they are not of this vocabulary.
    """
    given = values.get(name)
    ids = given if isinstance(given, list) else [] if given is None else [given]
    fits = all(type(token) is int and 0 <= token < vocab_size for token in ids)
    require(fits, name, given, f"token ids from 0 to {vocab_size - 1}")
    return ids


def core_config(values: Mapping[str, Any]) -> GPSTConfig | GPT2Config:
    """Our configuration from the contents of a config.json.

    Raises:
        ConfigError: it describes another kind of model.
    """
    kind = values.get("model_type")
    if kind == "gpst":
        known = config_to_dict(GPSTConfig(vocab_size=1, bos_token_id=0))
        own = {k: v for k, v in config_now(values).items() if k in known}
        return config_from_dict(own | {"kind": "gpst"})
    if kind == "gpt2":
        return GPT2Config(
            vocab_size=values["vocab_size"],
            bos_token_id=values["bos_token_id"],
            max_context_tokens=values["n_positions"],
            hidden_dim=values["n_embd"],
            num_heads=values["n_head"],
            ffn_dim=values.get("n_inner") or 4 * values["n_embd"],
            num_layers=values["n_layer"],
            init=values.get("init", "width_scaled"),
            dropout=values.get("resid_pdrop", 0.1),
        )
    raise ConfigError(f"model_type {kind!r} is not allowed; it must be gpst or gpt2")


def _check_finite(weights: Mapping[str, Tensor], what: str) -> None:
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise ModelFolderError(
                f"{what}: {name} holds numbers that are not finite (nan or inf): the training has "
                "diverged; export an earlier checkpoint"
            )


def export(
    folder: str | Path,
    config: GPSTConfig | GPT2Config,
    weights: Mapping[str, Tensor],
    tokenizer: str | Path,
    end_token: int | None,
    card: str = "",
    classifier: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes a model folder that transformers, `gpst.GPST` and the commands load.

    Args:
        weights: the core model's state dict, in the precision that is to be stored.
        tokenizer: folder of tokenizer.json (and tokenizer_config.json).
        end_token: the token that ends a document.
        card: contents of README.md.
        classifier: weight and bias of a classifier's last layer (gpst/model/classifier.py).
    Raises:
        ModelFolderError: the tokenizer is missing or has more tokens than the model; a classifier
            that is no GPST, for which transformers has no model; weights that are not finite.
    """
    source, out = Path(tokenizer), Path(folder)
    if not (source / TOKENIZER).is_file():
        raise ModelFolderError(f"no {TOKENIZER} in {source}; give the dataset's tokenizer folder")
    codec = Codec.load(source)
    size = codec.tokenizer.get_vocab_size()
    if size > config.vocab_size:
        raise ModelFolderError(
            f"the tokenizer in {source} has {size} tokens, but the model {config.vocab_size}: "
            "it belongs to another model"
        )
    if classifier and isinstance(config, GPT2Config):
        raise ModelFolderError(
            "the model is a GPT-2 classifier, which reads CLS where transformers' own does not; "
            "only GPST classifiers can be exported"
        )
    _check_finite(weights, "the model")
    out.mkdir(parents=True, exist_ok=True)
    if isinstance(config, GPT2Config):
        values, stored = _gpt2_config(config, end_token), _gpt2_stored(weights)
    else:
        final = set(codec.final_tokens()) | (set() if end_token is None else {end_token})
        values = _gpst_config(config, end_token, sorted(final))
        stored = {PREFIX + name: tensor for name, tensor in weights.items()}
        if classifier:
            stored |= classifier
            labels = {str(k): f"LABEL_{k}" for k in range(len(classifier["classifier.bias"]))}
            values["architectures"] = ["GPSTForSequenceClassification"]
            values["id2label"] = labels
            values["label2id"] = {name: int(k) for k, name in labels.items()}
        (out / REMOTE).write_text(REMOTE_CODE, encoding="utf-8")
    values["dtype"] = str(next(iter(stored.values())).dtype).removeprefix("torch.")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in stored.items()}
    (out / TOKENIZER).write_bytes((source / TOKENIZER).read_bytes())
    of_tokenizer = _tokenizer_config(source, codec, values)
    pad = of_tokenizer["pad_token"]
    pad = pad["content"] if isinstance(pad, Mapping) else pad
    values["pad_token_id"] = None if pad is None else codec.tokenizer.token_to_id(pad)
    special = {name: values[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(out / _TOKENIZER_CONFIG, of_tokenizer)
    _write_json(out / "generation_config.json", special)
    save_file(stored, out / WEIGHTS, metadata={"format": "pt"})
    # safetensors writes for the owner alone.
    (out / WEIGHTS).chmod((out / TOKENIZER).stat().st_mode)
    if card:
        (out / "README.md").write_text(card, encoding="utf-8")
    # Last, so that a folder with a configuration is whole.
    _write_json(out / CONFIG, values)


_TOKENIZER_CONFIG = "tokenizer_config.json"


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _tokenizer_config(source: Path, codec: Codec, model: Mapping[str, Any]) -> dict[str, Any]:
    """The dataset's tokenizer_config.json with what transformers needs to pad and to generate.

    Args:
        model: its config.json.
    """
    file = source / _TOKENIZER_CONFIG
    stated = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    last = model["bos_token_id"] if model["eos_token_id"] is None else model["eos_token_id"]
    missing = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": codec.tokenizer.id_to_token(last),
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": model.get("n_positions", model.get("max_context_tokens")),
    }
    return missing | {name: value for name, value in stated.items() if value is not None}


def _gpst_config(config: GPSTConfig, end_token: int | None, final: list[int]) -> dict[str, Any]:
    own = config_to_dict(config)
    del own["kind"]
    return {
        "architectures": ["GPSTForCausalLM"],
        "model_type": "gpst",
        "auto_map": AUTO_MAP,
        **own,
        "eos_token_id": end_token,
        "sentence_final_token_ids": final,
    }


def _gpt2_config(config: GPT2Config, end_token: int | None) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.max_context_tokens,
        "n_embd": config.hidden_dim,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.ffn_dim,
        "init": config.init,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": end_token,
    }


_HEAD = "lm_head.weight"


def _gpt2_stored(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of GPT2LMHeadModel; the tied head is not stored twice."""
    plain = {name.removeprefix("gpt2."): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in plain.items() if name != _HEAD}


def _gpt2_core(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    head = stored.get(_HEAD, stored["transformer.wte.weight"])
    return {"gpt2." + name: tensor for name, tensor in {**stored, _HEAD: head}.items()}
