"""The web page: its interface by HTTP, and the page itself in a real browser."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest
import torch
import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gpst import GPST
from gpst.config import CompositionConfig, GPSTConfig, ParserConfig
from gpst.export.huggingface import export
from gpst.model.build import build_model
from gpst.tree import Tree
from gpst.web.server import PAGE, Limits, create_app, main
from gpst.web.streams import stream

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
TEXT, BEAM = "Dogs <b> bark.", 4


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
def serving(app: Any, port: int) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
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


@pytest.fixture(scope="module")
def model(exported) -> GPST:
    return GPST.from_pretrained(exported, "cpu")


@pytest.fixture(scope="module")
def address(model, free_port) -> Iterator[str]:
    with serving(
        create_app({"first": model, "second": model}, Limits(seconds=1e6, beam=BEAM)), free_port()
    ) as url:
        yield url


def ask(address: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status, and the events or the values of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            if "ndjson" in reply.headers["Content-Type"]:
                return reply.status, [json.loads(line) for line in reply]
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def tree_of(actions: str, text: dict[str, Any]) -> str:
    tree = Tree.from_actions(["gc".index(action) for action in actions])
    return tree.contract(text["word_of_piece"]).brackets(text["words"])


def test_an_analysis_is_what_the_commands_say(address, model):
    code, events = ask(address, "/api/analyse", {"text": f"  {TEXT}", "model": 1})
    assert code == 200
    assert events[-1] == {"event": "end"}
    text, pieces = events[0], of_kind(events, "piece")
    assert text["words"] == ["Dogs", "<", "b", ">", "bark", "."]
    assert (len(text["pieces"]), text["sentence_lengths"]) == (len(pieces), [6])
    bits = [0.0] * 6
    for word, piece in zip(text["word_of_piece"], pieces, strict=True):
        bits[word] += piece["bits"]
        assert piece["bits"] == pytest.approx(-math.log2(piece["p"]), abs=1e-4)
        shown = [p for _, _, p in piece["expected"]]
        assert shown == sorted(shown, reverse=True)
        assert (piece["rank"] <= len(shown)) == (piece["p"] >= shown[-1])
    assert bits == pytest.approx(
        [word.bits for word in model.surprisal([TEXT], beam=BEAM)], abs=1e-3
    )
    [inside] = of_kind(events, "inside")
    assert tree_of(inside["actions"], text) == str(model.parse(TEXT))
    prefixes = of_kind(events, "prefix")
    assert [prefix["pieces"] for prefix in prefixes] == list(range(1, len(pieces) + 2))
    for prefix in prefixes:
        assert sum(p for p, _ in prefix["trees"]) == pytest.approx(1)
        assert all(a.count("g") == min(prefix["pieces"], len(pieces)) for _, a in prefix["trees"])
    best = prefixes[-1]["trees"][0][1]
    assert tree_of(best, text) == str(model.parse(TEXT, "left-to-right", beam=BEAM))
    [following] = of_kind(events, "next")
    assert 0 < sum(p for _, _, p in following["expected"]) <= 1


def test_sentences_follow_each_other(address, model):
    _, events = ask(address, "/api/analyse", {"text": "A b. Cd."})
    assert events[0]["sentence_lengths"] == [3, 2]
    bits = sum(piece["bits"] for piece in of_kind(events, "piece"))
    both = model.surprisals([["A b.", "Cd."]], beam=BEAM)[0]
    assert bits == pytest.approx(sum(w.bits for s in both for w in s), abs=1e-3)
    assert of_kind(events, "prefix")[-1]["trees"][0][1].count("c") == 4 + 3


def test_continuations_stream(address, monkeypatch):
    monkeypatch.setattr("gpst.web.analysis._MAX_NEW_TOKENS", 12)
    found = [ask(address, "/api/continue", {"text": TEXT, "seed": seed})[1] for seed in (1, 1, 2)]
    texts = ["".join(event["text"] for event in of_kind(events, "written")) for events in found]
    assert len(of_kind(found[0], "written")) > 4
    assert texts[0] == texts[1] != texts[2]


def test_what_is_too_long_or_wrong_is_refused(address):
    for body, message in (
        ({"text": "a" * 400}, "the text has 401 word pieces, and at most 128 are read here"),
        ({"text": " \n"}, "write a sentence first"),
        ({"text": "\ud800"}, "surrogates not allowed"),
        ({"text": "a", "model": 2}, "model 2 is not here; there are 2"),
    ):
        for path in ("/api/analyse", "/api/continue"):
            code, found = ask(address, path, body)
            assert code == 422
            assert message in found["error"]
    assert ask(address, "/api/analyse", {"words": 3})[0] == 422
    assert ask(address, "/api/models")[1]["models"] == ["first", "second"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address + "/../pyproject.toml", timeout=10)
    assert refused.value.code == 404
    refused.value.close()


class Client:
    """Waits for an answer until it has gone."""

    gone = False

    async def is_disconnected(self) -> bool:
        return self.gone


async def collected(lines: Any, most: int = 1000) -> list[Any]:
    return [json.loads(line) async for _, line in _numbered(lines, most)]


async def _numbered(lines: Any, most: int) -> Any:
    number = 0
    async for line in lines:
        yield number, line
        number += 1
        if number == most:
            await lines.aclose()
            return


def test_an_answer_that_takes_too_long_ends_and_the_next_one_begins():
    turn = Lock()

    def endless(emit: Any) -> None:
        while True:
            time.sleep(0.005)
            emit({"event": "step"})

    events = asyncio.run(collected(stream(endless, Client(), turn, 0.05)))
    assert events[0] == {"event": "step"}
    assert events[-1]["error"].startswith("stopped after 0.05 s")
    assert not turn.locked()

    def wrong(emit: Any) -> None:
        raise ValueError("no\nsuch thing")

    [event] = asyncio.run(collected(stream(wrong, Client(), turn, 9.0)))
    assert event == {"event": "error", "error": "no such thing"}


@pytest.mark.parametrize("leaves", ["closes", "is seen to be gone"])
def test_what_nobody_waits_for_is_no_longer_computed(leaves):
    turn, client, ended = Lock(), Client(), Event()
    steps = []

    def slow(emit: Any) -> None:
        try:
            while True:
                time.sleep(0.02 if leaves == "closes" else 0.3)
                steps.append(1)
                emit({"event": "step"})
        finally:
            ended.set()

    client.gone = leaves != "closes"
    events = asyncio.run(collected(stream(slow, client, turn, 1e9), most=2))
    assert len(events) == (2 if leaves == "closes" else 0)
    assert ended.wait(60)
    assert len(steps) < 50
    assert turn.acquire(timeout=60)


def test_one_waits_for_the_other():
    turn = Lock()
    turn.acquire()
    threading.Timer(0.2, turn.release).start()
    events = asyncio.run(collected(stream(lambda emit: None, Client(), turn, 1.0)))
    assert events == [{"event": "waiting"}, {"event": "end"}]


def test_a_client_that_hangs_up_frees_the_model(model, free_port, monkeypatch):
    ended = Event()

    def endless(model: Any, sentences: Any, beam: int, emit: Any) -> None:
        try:
            while True:
                time.sleep(0.01)
                emit({"event": "step"})
        finally:
            ended.set()

    monkeypatch.setattr("gpst.web.analysis.analyse", endless)
    with serving(create_app({"one": model}, Limits(seconds=1e9)), free_port()) as url:
        body = json.dumps({"text": "a"}).encode()
        request = urllib.request.Request(
            url + "/api/analyse", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.loads(reply.readline()) == {"event": "step"}
        assert ended.wait(60)


def test_a_port_that_is_taken_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--model", "nowhere", "--port", port]) == 2
    error = capsys.readouterr().err
    message = f"demo: --host 127.0.0.1 --port {port}: cannot listen there (Address already in use)"
    assert error == message + "\n"


def test_the_page_needs_nothing_from_elsewhere():
    page = PAGE.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'`<>)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=\"(?!data:)", page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere", "--port", "0"], "model nowhere does not exist"),
        ([], "--model is missing: name a folder that launch/convert.sh to-hf has made"),
        (["--model", "x", "--port", "99999"], "'99999' is not a port: a number from 0 to 65535"),
        (["--model", "x", "--port", "-1"], "'-1' is not a port"),
        (["--model", "x", "--max-tokens", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_a_wrong_call_is_one_line(capsys, arguments, message):
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


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

    opened = Tab(tmp_path / "profile", f"{address}/#text=A+b.", client.connect)
    try:
        yield opened
    finally:
        opened.close()


def test_the_page_in_a_browser(tab):
    tab.wait(
        "typeof state !== 'undefined' && state.lanes.length && state.lanes.every(l => !l.busy)"
    )
    assert tab.value("state.lanes.length") == 2  # two models side by side
    tab.click("#side")
    tab.value("at('text').value = ''; at('text').focus()")
    tab.call("Input.insertText", text="Old <i>m(n</i> sail.")
    tab.click("#analyse")
    tab.wait("state.text.startsWith('Old') && state.lanes.length === 1 && !state.lanes[0].busy")
    words = ["Old", "<", "i", ">", "m", "(", "n", "</", "i", ">", "sail", "."]
    figure = "#figure-0 svg"
    tab.wait(f"document.querySelectorAll('{figure} .node').length === 11")
    texts = f"[...document.querySelectorAll('{figure} text:not(.small):not(.turn)')]"
    assert tab.value(f"{texts}.map(text => text.textContent)") == words
    assert tab.value(f"document.querySelectorAll('{figure} .edge').length") == 22
    bits = tab.value(f"[...document.querySelectorAll('{figure} .small')].map(t => t.textContent)")
    assert len([text for text in bits if re.fullmatch(r"\d+\.\d", text)]) == 12
    brackets = tab.value("at('brackets-0').textContent")
    assert Tree.from_brackets(brackets)[1] == words
    # The tree grows with the slider; what is not built yet is open, what is not read pale.
    tab.value("at('slider').value = 4; at('slider').dispatchEvent(new Event('input'))")
    assert "4 of 12" in tab.value("at('where').textContent")
    assert tab.value(f"document.querySelectorAll('{figure} .unread').length") == 8
    edges = tab.value(f"document.querySelectorAll('{figure} .edge, {figure} .open').length")
    assert edges == 6
    assert tab.value("document.querySelectorAll('#trees-0 button').length") >= 1
    assert tab.value("document.querySelectorAll('#next-0 button').length") == 8
    picture = ElementTree.fromstring(tab.value("picture(state.lanes[0])"))
    assert picture.get("viewBox")
    assert "Old%20%3Ci%3E" in tab.value("location.hash.replaceAll('+', '%20')")
    tab.click("#pieces")
    assert tab.value(f"{texts}.length") == len(" Old <i>m(n</i> sail.")
    tab.click("#continue")
    tab.wait("!at('continuation').hidden && at('stop').hidden")
    assert tab.value("at('written').textContent").startswith("Old <i>m(n</i> sail.")
    assert tab.value("at('error').textContent") == ""
    tab.value("at('text').value = ' '")
    tab.click("#analyse")
    tab.wait("at('error').textContent.includes('write a sentence')")
