"""The web page: its interface by HTTP, and the page itself in a real browser."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.export.huggingface import export
from gpst.model.build import build_model

ROOT = Path(__file__).parents[3]
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


@pytest.fixture(scope="module")
def address(exported, free_port, clean_environment) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "launch.demo", "--model", exported, "--port", port]
    with subprocess.Popen(
        [str(part) for part in command], cwd=ROOT, env=clean_environment, stderr=subprocess.PIPE,
        text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stderr is not None
            url = server.stderr.readline().strip()
            assert url == f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(url, timeout=5).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    assert server.poll() is None
                    time.sleep(0.05)
            yield url
        finally:
            server.kill()


def ask(address: str, path: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_trees_surprisals_and_continuations_by_http(address):
    text = "Dogs <b> bark."
    code, found = ask(address, "/api/parse", {"text": text})
    assert code == 200
    for method in ("inside", "left_to_right"):
        assert found[method]["brackets"].replace("(", "").replace(")", "") == "Dogs < b > bark ."
        assert found[method]["svg"].count("<text") == 6
        assert "&lt;" in found[method]["svg"]  # nothing of the text is markup
    code, found = ask(address, "/api/surprisal", {"text": text})
    assert [word["word"] for word in found["words"]] == ["Dogs", "<", "b", ">", "bark", "."]
    assert all(word["bits"] > 0 for word in found["words"])
    first = ask(address, "/api/generate", {"text": text, "seed": 1})[1]
    assert first["svg"].startswith("<svg")
    assert first["text"]
    assert first == ask(address, "/api/generate", {"text": text, "seed": 1})[1]
    assert first["text"] != ask(address, "/api/generate", {"text": text, "seed": 2})[1]["text"]


def test_what_is_too_long_or_wrong_is_refused(address):
    for body, message in (
        ({"text": "a " * 300}, "at most 400 are allowed"),
        ({"text": "  "}, "write a sentence first"),
    ):
        for path in ("/api/parse", "/api/surprisal", "/api/generate"):
            code, found = ask(address, path, body)
            assert code == 422
            assert message in found["error"]
    assert ask(address, "/api/parse", {"words": 3})[0] == 422
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address + "/../pyproject.toml", timeout=10)
    assert refused.value.code == 404
    refused.value.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model", "nowhere"], "model nowhere does not exist"),
        ([], "--model is missing: name a folder that launch/convert.sh to-hf has made"),
    ],
)
def test_a_missing_model_is_one_line(clean_environment, given, message):
    done = subprocess.run(
        [sys.executable, "-m", "launch.demo", *given],
        cwd=ROOT, env=clean_environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


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


@pytest.fixture
def tab(address, tmp_path) -> Iterator[Tab]:
    if BROWSER is None:
        pytest.skip("no chromium here (apt-get install chromium)")
    from websockets.sync import client

    opened = Tab(tmp_path / "profile", address, client.connect)
    try:
        yield opened
    finally:
        opened.close()


def test_the_page_in_a_browser(tab):
    tab.wait("document.readyState === 'complete' && !!document.querySelector('#text')")
    assert tab.value("document.querySelector('#analysis').hidden")
    tab.value("document.querySelector('#text').value = ''; document.querySelector('#text').focus()")
    tab.call("Input.insertText", text="Old <i>men</i> sail.")
    tab.click("#analyse")
    tab.wait("!document.querySelector('#analysis').hidden")
    for tree in ("#inside", "#left"):
        words = tab.value(f"[...document.querySelectorAll('{tree} text')].map(t => t.textContent)")
        assert words == ["Old", "<", "i", ">", "men", "</", "i", ">", "sail", "."]
        assert tab.value(f"document.querySelectorAll('{tree} line').length") == 18
        assert (
            tab.value(f"document.querySelector('{tree} svg').getBoundingClientRect().height") > 50
        )
    assert tab.value("document.querySelectorAll('#surprisal .word').length") == 10
    tab.wait("!document.querySelector('#continue').disabled")
    tab.click("#continue")
    tab.wait("!document.querySelector('#continuation').hidden")
    assert tab.value("document.querySelector('#written').textContent").startswith("Old <i>men</i>")
    assert tab.value("document.querySelectorAll('#tree line').length") > 18
    assert tab.value("document.querySelector('#error').textContent") == ""
    picture = base64.b64decode(tab.call("Page.captureScreenshot")["data"])
    assert len(picture) > 5000
    tab.value("document.querySelector('#text').value = ' '")
    tab.wait("!document.querySelector('#analyse').disabled")
    tab.click("#analyse")
    tab.wait("document.querySelector('#error').textContent.includes('write a sentence')")
