"""A tiny model, and its page on a port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gpst import GPST
from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.export.huggingface import export
from gpst.model.build import build_model
from gpst.web.server import Limits, create_app


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE({c: k for k, c in enumerate(["<|endoftext|>", *alphabet])}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = GPSTConfig(
        vocab_size=257, bos_token_id=0, max_context_tokens=512, hidden_dim=16, num_heads=2,
        ffn_dim=16, num_type_layers=1, num_token_layers=1,
        composition=CompositionConfig(dim=8, num_heads=2, ffn_dim=8, num_layers=1, score_dim=8),
        parser=ParserConfig(dim=8, num_heads=2, ffn_dim=8, num_layers=1),
    )  # fmt: skip
    torch.manual_seed(0)
    export(folder / "model", config, build_model(config).state_dict(), folder, 0)
    return folder / "model"


@contextmanager
def _serving(app: Any, port: int) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def serving() -> Callable[..., Any]:
    """serving(app, port): a context in which the app answers at the URL that it gives."""
    return _serving


@pytest.fixture(scope="session")
def beam() -> int:
    """Of the page at `address`."""
    return 4


@pytest.fixture(scope="module")
def model(exported) -> GPST:
    return GPST.from_pretrained(exported, "cpu")


@pytest.fixture(scope="module")
def address(model, beam, serving, free_port) -> Iterator[str]:
    with serving(
        create_app({"first": model, "second": model}, Limits(seconds=1e6, beam=beam)), free_port()
    ) as url:
        yield url
