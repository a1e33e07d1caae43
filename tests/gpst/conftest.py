"""A tiny exported model with a real tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ParserConfig
from gpst.export.huggingface import export
from gpst.model.build import build_model

TEXT = [
    "The old man sailed the boats of the harbour.",
    'She said, "We saw them." Did they go? They did!',
    "It isn't 3.14 o'clock; the cats were sleeping on unbelievable mats.",
]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def tiny_config(**changes) -> GPSTConfig:
    composition = CompositionConfig(dim=8, num_heads=2, ffn_dim=16, num_layers=1, score_dim=8)
    sizes = {
        "vocab_size": 336,
        "bos_token_id": 0,
        "max_context_tokens": 128,
        "hidden_dim": 16,
        "num_heads": 2,
        "ffn_dim": 32,
        "num_type_layers": 1,
        "num_token_layers": 2,
        "composition": composition,
        "parser": ParserConfig(dim=8, num_heads=2, ffn_dim=16, num_layers=1),
    }
    return GPSTConfig(**(sizes | changes))


@pytest.fixture(scope="session")
def make_export(tokenizer_folder: Path) -> Callable[..., torch.nn.Module]:
    """Exports a random model to a folder and returns the model."""

    def make(folder: Path, kind: str = "gpst", **changes) -> torch.nn.Module:
        torch.manual_seed(0)
        if kind == "gpst":
            config = tiny_config(**changes)
        else:
            sizes = {"hidden_dim": 16, "num_heads": 2, "ffn_dim": 32, "num_layers": 2}
            config = GPT2Config(336, 0, 64, **(sizes | changes))
        model = build_model(config).eval()
        export(folder, config, model.state_dict(), tokenizer_folder, 0, card="# A model\n")
        return model

    return make


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, make_export) -> Path:
    folder = tmp_path_factory.mktemp("export")
    make_export(folder)
    return folder


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """These models are so small that threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
