"""The page itself in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpst.tree import Tree

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


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
