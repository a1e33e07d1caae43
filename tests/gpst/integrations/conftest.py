"""The GPST export and the GPT-2 export, as transformers loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers_models import TEXTS, load


@pytest.fixture(scope="module", params=["gpst", "gpt2"])
def folder(request, tmp_path_factory, make_export) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make_export(path, request.param)
    return path


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))


@pytest.fixture
def model(folder) -> Any:
    return load(folder)


@pytest.fixture(scope="module")
def tokenizer(folder) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def inputs(tokenizer) -> Any:
    return tokenizer(TEXTS, padding=True, return_tensors="pt")
