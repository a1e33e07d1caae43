"""A tiny model, its page on a port, and a browser's tab with that page."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


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


class Tab:
    """A browser's tab, by its own debugging protocol."""

    def __init__(self, folder: Path, url: str, connect: Any):
        self.process = subprocess.Popen(
            [
                str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--remote-debugging-port=0",
                f"--user-data-dir={folder}", url,
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port_file = folder / "DevToolsActivePort"
        self._until(lambda: port_file.is_file() and "\n" in port_file.read_text())
        port = port_file.read_text().split()[0]

        def page() -> str | None:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as reply:
                pages = [p for p in json.load(reply) if p["type"] == "page" and url in p["url"]]
            return pages[0]["webSocketDebuggerUrl"] if pages else None

        self.stack = ExitStack()
        self.socket = self.stack.enter_context(connect(self._until(page), max_size=2**26))
        self.number = 0

    def call(self, method: str, **values: Any) -> Any:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": values}))
        while True:
            reply = json.loads(self.socket.recv(timeout=60))
            if reply.get("id") == self.number:
                assert "error" not in reply, reply
                return reply["result"]

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        self._until(lambda: self.value(script))

    def click(self, selector: str) -> None:
        """With the mouse, where the element is on the page."""
        box = self.value(
            f"(() => {{ const e = document.querySelector('{selector}'); e.scrollIntoView();"
            " const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)  # fmt: skip

    def _until(self, happened: Any) -> Any:
        deadline = time.monotonic() + 60
        while not (found := happened()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found

    def close(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def tab(address, tmp_path_factory) -> Iterator[Tab]:
    if BROWSER is None:
        pytest.skip("no chromium here (apt-get install chromium)")
    from websockets.sync import client

    opened = Tab(tmp_path_factory.mktemp("profile"), f"{address}/#text=A+b.", client.connect)
    try:
        yield opened
    finally:
        opened.close()
