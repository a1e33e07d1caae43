"""Tiny models and tokenizers for the evaluation tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import nn

from gpst.config import CompositionConfig, GPSTConfig, GPT2Config, ParserConfig
from gpst.export.huggingface import export
from gpst.model.build import build_model
from pipeline.config.run import REPOSITORY

LETTERS = "abcdefghijklmnopqrstuvwxyz.,?!'"


def make_pieces() -> Tokenizer:
    """Every character is a piece; all but the first of a word are marked, as WordPiece does."""
    vocabulary = {"[UNK]": 0, "[CLS]": 1}
    for letter in LETTERS:
        vocabulary[letter] = len(vocabulary)
        vocabulary["##" + letter] = len(vocabulary)
    for word in ("the", "dog", "##og", "cat", "##at"):
        vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    return tokenizer


def make_byte_bpe(merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    """A byte-level BPE with the given merges."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0}
    for token in [*characters, *(a + b for a, b in merges)]:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(  # type: ignore[assignment]
        add_prefix_space=False
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return tokenizer


@pytest.fixture(scope="session")
def pieces() -> Tokenizer:
    return make_pieces()


@pytest.fixture(scope="session")
def byte_bpe() -> Callable[..., Tokenizer]:
    return make_byte_bpe


TINY = {"hidden_dim": 16, "num_heads": 2, "ffn_dim": 16}


def scaled_model(config: GPSTConfig | GPT2Config, factor: float, seed: int = 0) -> nn.Module:
    """A model with larger matrices than a new one has."""
    torch.manual_seed(seed)
    model = build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(factor)
    return model.eval()


@pytest.fixture(scope="session")
def tiny_gpst() -> Callable[..., nn.Module]:
    """tiny_gpst(vocab_size): a GPST whose predictions are far from uniform."""

    def make(vocab_size: int, seed: int = 0, max_context_tokens: int = 64) -> nn.Module:
        config = GPSTConfig(
            vocab_size=vocab_size,
            bos_token_id=0,
            max_context_tokens=max_context_tokens,
            **TINY,
            num_type_layers=1,
            num_token_layers=1,
            composition=CompositionConfig(dim=8, num_heads=2, ffn_dim=8, num_layers=1, score_dim=8),
            parser=ParserConfig(dim=8, num_heads=2, ffn_dim=8, num_layers=1),
        )
        return scaled_model(config, 3.0, seed)

    return make


@pytest.fixture(scope="session")
def tiny_gpt2() -> Callable[..., nn.Module]:
    """tiny_gpt2(vocab_size): a GPT-2 baseline whose predictions are far from uniform."""

    def make(vocab_size: int, max_context_tokens: int = 64) -> nn.Module:
        config = GPT2Config(vocab_size, 0, max_context_tokens, **TINY, num_layers=2)
        return scaled_model(config, 10.0)

    return make


@pytest.fixture
def model_folder(tmp_path: Path, tiny_gpst: Callable, tiny_gpt2: Callable) -> Callable[[str], Path]:
    """model_folder("gpst" or "gpt2"): an exported tiny model over bytes."""
    tokenizer = make_byte_bpe([("Ġ", letter) for letter in "abcdefgxy"])
    tokenizer.add_special_tokens(["<|endoftext|>"])

    def make(kind: str) -> Path:
        folder = tmp_path / f"model-{kind}"
        source = folder / "source"
        source.mkdir(parents=True)
        tokenizer.save(str(source / "tokenizer.json"))
        size = tokenizer.get_vocab_size()
        config = (tiny_gpst if kind == "gpst" else tiny_gpt2)(size).config
        torch.manual_seed(0)
        model = build_model(config)  # with weights that can be trained
        export(folder, config, model.state_dict(), source, end_token=0)
        return folder

    return make


@pytest.fixture
def finetune(
    clean_environment: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """finetune(config, "field=value", ...) -> the finished command, on one CPU rank."""

    def run(config: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipeline", "finetune", "--config", str(config), *overrides],
            env=clean_environment | {"PYTHONPATH": str(REPOSITORY)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run
